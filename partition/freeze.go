package partition

import (
	"context"
	"errors"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
)

// The triggers of a frozen partition, and their function, which lives in the schema of the partition.
const (
	frozenRows    = "reconciler_frozen"
	frozenAll     = "reconciler_frozen_truncate"
	frozenRefusal = "reconciler_refuse_write"
)

// freeze makes a partition refuse every write, if all of its statuses are final. The lock waits for the writers that are there and keeps
// new ones off until the triggers are in place; readers pass. Whoever routes a row into the partition, writes to it directly, replicates
// into it or truncates it gets an error that says why.
func (a *Archiver) freeze(ctx context.Context, oid uint32) error {
	failpoint("freeze:begun")
	err := a.alter(ctx, func(tx *sqlx.Tx) error {
		name, err := lockByOID(ctx, tx, oid, "SHARE ROW EXCLUSIVE")
		if err != nil {
			return err
		}
		if err := a.allFinal(ctx, tx, name); err != nil {
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
			// One that is there was disabled. ALWAYS holds for replication as well.
			if _, err := tx.ExecContext(ctx, `DROP TRIGGER IF EXISTS `+t.name+` ON `+name); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `CREATE TRIGGER `+t.name+` `+t.when+` EXECUTE FUNCTION `+function+`()`); err != nil {
				return err
			}
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
	var exists bool
	if err := tx.GetContext(ctx, &exists, `SELECT to_regproc($1) IS NOT NULL`, function); err != nil || exists {
		return function, err
	}
	_, err := tx.ExecContext(ctx, `
		CREATE FUNCTION `+function+`() RETURNS trigger LANGUAGE plpgsql AS $$
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
		name, err := lockByOID(ctx, tx, oid, "ACCESS EXCLUSIVE")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DROP TRIGGER IF EXISTS `+frozenRows+` ON `+name)
		if err == nil {
			_, err = tx.ExecContext(ctx, `DROP TRIGGER IF EXISTS `+frozenAll+` ON `+name)
		}
		return err
	})
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}
