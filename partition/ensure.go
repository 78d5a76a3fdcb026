package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/callreceipt/reconciler/internal/database"
)

// boundsName is a constraint that stands only while a table is attached.
const boundsName = "reconciler_bounds"

// Ensured is what was made ahead; its JSON field names are a contract.
type Ensured struct {
	Table string   `json:"table"`
	Made  []string `json:"made"`
	Until string   `json:"until"` // up to where there are partitions without a gap
}

// Ensure makes the partitions that are missing from now on. Each is built aside and attached in a transaction of its own, which lets
// inserts into its siblings go on; one that cannot be made does not keep the others from being made.
func (a *Archiver) Ensure(ctx context.Context) (Ensured, error) {
	done := Ensured{Table: a.cfg.Table, Made: []string{}}
	v, err := a.look(ctx)
	if err != nil {
		return done, err
	}
	var failures []error
	for _, within := range Premake(v.partitions, v.now, a.cfg.Interval, a.cfg.Premake) {
		name, err := a.make(ctx, within)
		a.cfg.Metrics.Step("premade", err != nil)
		if err != nil {
			failures = append(failures, fmt.Errorf("making a partition of %s from %s to %s: %w", a.cfg.Table, within.Lower, within.Upper, err))
			if ctx.Err() != nil || database.Unreachable(err) {
				break
			}
		}
		if name != "" {
			done.Made = append(done.Made, name)
		}
	}
	if v, err = a.look(ctx); err != nil {
		return done, errors.Join(append(failures, err)...)
	}
	done.Until = Horizon(v.partitions, v.now).String()
	return done, errors.Join(failures...)
}

// make makes one partition and returns its name, or none when somebody else has made it meanwhile.
func (a *Archiver) make(ctx context.Context, within Range) (name string, err error) {
	failpoint("premake:begun")
	err = a.alter(ctx, func(tx *sqlx.Tx) error {
		p, err := a.parent(ctx, tx)
		if err != nil {
			return err
		}
		// Whoever else makes partitions waits here, and then sees ours.
		if _, err := tx.ExecContext(ctx, `LOCK TABLE ONLY `+p.Relation+` IN SHARE UPDATE EXCLUSIVE MODE`); err != nil {
			return err
		}
		there, err := children(ctx, tx, p)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(there, func(p Partition) bool { return p.Range == within }) {
			name = ""
			return nil
		}
		table := partitionName(a.name, within, a.cfg.Interval)
		name = a.schema + "." + table
		quoted := pq.QuoteIdentifier(a.schema) + `.` + pq.QuoteIdentifier(table)
		var taken bool
		if err := tx.GetContext(ctx, &taken, `SELECT to_regclass($1) IS NOT NULL`, quoted); err != nil {
			return err
		}
		if taken {
			return &Problem{name, "a table of that name is there and is not the partition for this range; rename it, or attach it"}
		}
		if _, err := tx.ExecContext(ctx, likeParent(quoted, p)); err != nil {
			return err
		}
		failpoint("premake:aside")
		_, err = tx.ExecContext(ctx, `ALTER TABLE `+p.Relation+` ATTACH PARTITION `+quoted+p.forValues(within))
		return err
	})
	if pq.As(err, pqerror.InvalidObjectDefinition) != nil { // it would overlap one that was not there when we looked
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return name, nil
}

// likeParent is the statement that makes an empty table which can become a partition.
func likeParent(quoted string, p parent) string {
	return `CREATE TABLE ` + quoted + ` (LIKE ` + p.Relation + ` INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE);
		ALTER TABLE ` + quoted + ` OWNER TO ` + p.Owner // who alters the table alters its partitions
}

// forValues is a range as SQL. The columns of the key after the first do not bound it.
func (p parent) forValues(within Range) string {
	more := strings.Repeat(", MINVALUE", len(p.Key)-1)
	return ` FOR VALUES FROM (` + sqlBound(within.Lower) + more + `) TO (` + sqlBound(within.Upper) + more + `)`
}

func sqlBound(b Bound) string {
	if s := b.String(); s == "MINVALUE" || s == "MAXVALUE" {
		return s
	}
	return pq.QuoteLiteral(b.String())
}

// boundsCheck says what a range says of the rows, or nothing where the key is more than one plain column.
func boundsCheck(p parent, within Range) string {
	if len(p.Key) != 1 || p.Key[0] == "" {
		return ""
	}
	column := pq.QuoteIdentifier(p.Key[0])
	check := column + ` IS NOT NULL`
	if _, ok := within.Lower.Time(); ok {
		check += ` AND ` + column + ` >= ` + sqlBound(within.Lower) + `::` + p.KeyType
	}
	if _, ok := within.Upper.Time(); ok {
		check += ` AND ` + column + ` < ` + sqlBound(within.Upper) + `::` + p.KeyType
	}
	return check
}
