package partition

import (
	"context"
	"errors"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
)

// The triggers of a frozen partition, and their function, which lives in the schema of the partition.
const (
	frozenRows    = "reconciler_frozen"
	frozenAll     = "reconciler_frozen_truncate"
	frozenRefusal = "reconciler_refuse_write"
)

// freeze makes a partition refuse every write. The lock waits for the writers that are there and keeps new ones off until the triggers are
// in place; readers pass. Whoever routes a row into the partition, writes to it directly, replicates into it or truncates it gets an error
// that says why. Whether everything is final is asked again after it, when nothing can change any more, and not while writers wait.
func (a *Archiver) freeze(ctx context.Context, oid uint32) error {
	failpoint("freeze:begun")
	err := a.alter(ctx, func(tx *sqlx.Tx) error {
		name, err := lockByOID(ctx, tx, oid, "SHARE ROW EXCLUSIVE")
		if err != nil {
			return err
		}
		failpoint("freeze:locked")
		if frozen, err := isFrozen(ctx, tx, oid); err != nil || frozen {
			return err
		}
		function, err := refusal(ctx, tx, oid)
		if err != nil {
			return err
		}
		for _, t := range []struct{ name, when string }{
			{frozenRows, `BEFORE INSERT OR UPDATE OR DELETE ON ` + name + ` FOR EACH ROW`},
			{frozenAll, `BEFORE TRUNCATE ON ` + name + ` FOR EACH STATEMENT`},
		} {
			var there bool // and disabled
			if err := tx.GetContext(ctx, &there, `SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = $1 AND tgname = $2 AND tgfoid = to_regproc($3))`, oid, t.name, function); err != nil {
				return err
			}
			if !there {
				if _, err := tx.ExecContext(ctx, `DROP TRIGGER IF EXISTS `+t.name+` ON `+name+`; CREATE TRIGGER `+t.name+` `+t.when+` EXECUTE FUNCTION `+function+`()`); err != nil {
					return err
				}
			}
			// ALWAYS holds for replication as well.
			if _, err := tx.ExecContext(ctx, `ALTER TABLE ONLY `+name+` ENABLE ALWAYS TRIGGER `+t.name); err != nil {
				return err
			}
		}
		return nil
	})
	failpoint("freeze:done")
	return err
}

// isFrozen reports whether both triggers are there and fire for everybody.
func isFrozen(ctx context.Context, q sqlx.QueryerContext, oid uint32) (frozen bool, err error) {
	err = sqlx.GetContext(ctx, q, &frozen, `
		SELECT count(*) = 2 FROM pg_trigger WHERE tgrelid = $1 AND tgname IN ($2, $3) AND tgenabled = 'A'`, oid, frozenRows, frozenAll)
	return frozen, err
}

// refusal returns the quoted name of the trigger function, which it makes if it is missing.
func refusal(ctx context.Context, tx *sqlx.Tx, oid uint32) (string, error) {
	var schema string
	if err := tx.GetContext(ctx, &schema, `SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1`, oid); err != nil {
		return "", err
	}
	function := pq.QuoteIdentifier(schema) + `.` + frozenRefusal
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('reconciler.'||$1))`, function); err != nil {
		return "", err
	}
	// It runs as whoever writes: one that another role owns is not taken for ours.
	var foreign bool
	if err := tx.GetContext(ctx, &foreign, `
		SELECT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1 AND p.proname = $2 AND p.pronargs = 0
			AND p.proowner NOT IN (SELECT oid FROM pg_roles WHERE rolname = current_user UNION ALL SELECT relowner FROM pg_class WHERE oid = $3))`,
		schema, frozenRefusal, oid); err != nil {
		return "", err
	}
	if foreign {
		return "", &Problem{function, "a function of that name belongs to another role; drop it, or give it to the owner of the table"}
	}
	_, err := tx.ExecContext(ctx, `
		CREATE OR REPLACE FUNCTION `+function+`() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			RAISE EXCEPTION '%.% is being archived: % refused', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP
				USING ERRCODE = 'object_not_in_prerequisite_state',
					HINT = 'Everything in it was final. "reconciler partitions explain" tells how far it is, "reconciler partitions restore" brings it back.';
		END $$`)
	return function, err
}

// unfreeze lets writes through again. A partition that is gone needs none.
func (a *Archiver) unfreeze(ctx context.Context, oid uint32) error {
	err := a.alter(ctx, func(tx *sqlx.Tx) error {
		var frozen bool
		if err := tx.GetContext(ctx, &frozen, `SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = $1 AND tgname IN ($2, $3))`, oid, frozenRows, frozenAll); err != nil || !frozen {
			return err
		}
		// This waits for writers alone; to drop the triggers is to wait for the last reader as well.
		name, err := lockByOID(ctx, tx, oid, "SHARE ROW EXCLUSIVE")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `ALTER TABLE ONLY `+name+` DISABLE TRIGGER `+frozenRows+`; ALTER TABLE ONLY `+name+` DISABLE TRIGGER `+frozenAll)
		return err
	})
	if err == nil {
		err = a.once(ctx, readCommitted{a.cfg.DB}, func(tx *sqlx.Tx) error {
			name, err := lockByOID(ctx, tx, oid, "ACCESS EXCLUSIVE")
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `DROP TRIGGER IF EXISTS `+frozenRows+` ON `+name+`; DROP TRIGGER IF EXISTS `+frozenAll+` ON `+name)
			return err
		})
		if database.Busy(err) { // disabled, they do no harm
			return nil
		}
	}
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}
