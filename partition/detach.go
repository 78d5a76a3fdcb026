package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// attachment is what the catalog says of a table that is or was a partition.
type attachment string

const (
	attached attachment = "attached"
	pending  attachment = "pending" // a concurrent detach was interrupted: not seen through the parent any more
	alone    attachment = "alone"
	missing  attachment = "missing"
)

// attachmentOf reads how the table with the oid belongs to the parent. One that belongs to another parent is missing.
func (a *Archiver) attachmentOf(ctx context.Context, q sqlx.QueryerContext, oid uint32) (is attachment, err error) {
	err = sqlx.GetContext(ctx, q, &is, `
		SELECT CASE WHEN c.oid IS NULL THEN 'missing' WHEN i.inhparent IS NULL THEN 'alone'
			WHEN i.inhparent IS DISTINCT FROM to_regclass(format('%I.%I', $2::text, $3::text))::oid THEN 'missing'
			WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END
		FROM (SELECT $1::oid AS oid) wanted LEFT JOIN pg_class c ON c.oid = wanted.oid LEFT JOIN pg_inherits i ON i.inhrelid = c.oid`,
		oid, a.schema, a.name)
	return is, err
}

// detach takes a partition out of the table without making anybody wait: CONCURRENTLY, in a session without a transaction. What a run
// that was killed, or that ran into lock_timeout, left half done is finished, as the catalog says and no error text. Where there is a
// DEFAULT partition PostgreSQL refuses CONCURRENTLY, and a plain DETACH is tried instead: it waits no longer than LockTimeout, and is done at once.
func (a *Archiver) detach(ctx context.Context, oid uint32) error {
	failpoint("detach:begun")
	err := a.patiently(ctx, func() error {
		is, err := a.attachmentOf(ctx, a.cfg.DB, oid)
		switch {
		case err != nil:
			return err
		case is == pending:
			return a.detachAs(ctx, oid, "FINALIZE")
		case is != attached:
			return nil
		}
		p, err := a.parent(ctx, a.cfg.DB)
		if err != nil {
			return err
		}
		if p.DefaultOID != 0 {
			return a.alter(ctx, func(tx *sqlx.Tx) error {
				// First the partition, which few want: nobody waits behind the lock on the parent while we wait for this one.
				name, err := lockByOID(ctx, tx, oid, "ACCESS EXCLUSIVE")
				if err == nil {
					_, err = tx.ExecContext(ctx, `ALTER TABLE `+p.Relation+` DETACH PARTITION `+name)
				}
				return err
			})
		}
		return a.detachAs(ctx, oid, "CONCURRENTLY")
	})
	if err != nil {
		return err
	}
	failpoint("detach:done")
	is, err := a.attachmentOf(ctx, a.cfg.DB, oid)
	if err == nil && is != alone {
		err = &Held{ReasonReplaced, fmt.Sprintf("after the detach the catalog says that it is %s", is)}
	}
	return err
}

// detachAs runs DETACH … CONCURRENTLY or FINALIZE, which want a session of their own and no transaction.
func (a *Archiver) detachAs(ctx context.Context, oid uint32, how string) (err error) {
	conn, err := a.cfg.DB.Connx(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	p, err := a.parent(ctx, conn)
	if err != nil {
		return err
	}
	name, err := relation(ctx, conn, oid)
	if err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, `SELECT set_config('lock_timeout', $1, false)`, a.lockTimeout()); err != nil {
		return err
	}
	defer func() { // the session goes back to the pool
		_, reset := conn.ExecContext(context.WithoutCancel(ctx), `RESET lock_timeout`)
		err = errors.Join(err, reset)
	}()
	_, err = conn.ExecContext(ctx, `ALTER TABLE `+p.Relation+` DETACH PARTITION `+name+` `+how)
	return err
}

// finished ends a detach that a run before this one began and did not finish.
func (r *pass) finished(ctx context.Context, e *entry) error {
	if err := r.detach(ctx, e.OID); err != nil {
		return err
	}
	r.sum.Detached++
	return nil
}

// attach makes a table a partition of the parent with bounds as PostgreSQL writes them. A CHECK that says the same spares the parent a
// scan under its lock.
func (a *Archiver) attach(ctx context.Context, oid uint32, bounds string) error {
	within, err := ParseRange(bounds) // they become SQL
	if err != nil {
		return err
	}
	return a.alter(ctx, func(tx *sqlx.Tx) error {
		p, err := a.parent(ctx, tx)
		if err != nil {
			return err
		}
		name, err := lockByOID(ctx, tx, oid, "ACCESS EXCLUSIVE")
		if err != nil {
			return err
		}
		check := boundsCheck(p, within)
		if check != "" {
			if _, err := tx.ExecContext(ctx, `ALTER TABLE `+name+` ADD CONSTRAINT `+boundsName+` CHECK (`+check+`)`); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, `ALTER TABLE `+p.Relation+` ATTACH PARTITION `+name+` `+bounds); err != nil {
			return err
		}
		if check != "" {
			_, err = tx.ExecContext(ctx, `ALTER TABLE `+name+` DROP CONSTRAINT `+boundsName)
		}
		return err
	})
}
