package partition

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
)

// claimsAtOnce is how many claims one transaction deletes.
const claimsAtOnce = 5_000

// dropOld drops what was detached long enough ago.
func (r *pass) dropOld(ctx context.Context) error {
	all, err := r.entries(ctx, false)
	if err != nil {
		return err
	}
	var failures []error
	for i := range all {
		e := &all[i]
		if !e.ended(StepDetached) && e.Step != StepDropped || e.DetachedAge < r.cfg.DropAfter.Seconds() {
			continue
		}
		if r.limits.DryRun {
			_, err := r.droppable(ctx, e)
			failures = append(failures, r.count(err))
			continue
		}
		m, err := r.droppable(ctx, e)
		if err == nil {
			err = r.step(ctx, e, StepDropped, func() error { return r.drop(ctx, e, m) })
		}
		if h := asHeld(err); h != nil {
			r.sum.Held++
			r.later = r.later || h.Reason == ReasonLocked
			r.cfg.Log.Warn("detached partition not dropped", "table", r.Subject(), "partition", e.Name, "reason", string(h.Reason), "example", h.Example)
			e.Step, e.Done = StepDetached, true
			err = r.hold(ctx, e, h)
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("dropping %s: %w", e.Name, err))
			if ctx.Err() != nil {
				break
			}
		}
	}
	return errors.Join(failures...)
}

// droppable holds a detached partition that somebody may still need: its object is not what was written, or an open call refers to it. It
// returns what the object has, and nothing when the table is gone: a run before this one was killed after the DROP.
func (r *pass) droppable(ctx context.Context, e *entry) (m Manifest, err error) {
	name, err := relation(ctx, r.cfg.DB, e.OID)
	if err != nil || name == "" && e.Step == StepDropped {
		return m, err
	}
	if err := r.alone(ctx, r.cfg.DB, e); err != nil {
		return m, err
	}
	if m, err = verify(ctx, r.manifest(e)); err != nil {
		return m, &Held{ReasonObjectDamaged, err.Error()}
	}
	if m.Digest != e.Digest.String || m.Rows != e.Rows.Int64 {
		return m, &Held{ReasonObjectDamaged, fmt.Sprintf("%s has %d rows with digest %s, the journal %d with %s", m.Object, m.Rows, m.Digest, e.Rows.Int64, e.Digest.String)}
	}
	return m, r.over(ctx, e.OID)
}

// alone holds a detached partition that somebody attached again, here or elsewhere, or renamed. Under a lock on it the answer stays true.
func (a *Archiver) alone(ctx context.Context, q sqlx.QueryerContext, e *entry) error {
	is, err := a.attachmentOf(ctx, q, e.OID)
	if err != nil {
		return err
	}
	if is != alone {
		return &Held{ReasonReplaced, fmt.Sprintf("the catalog says that it is %s", is)}
	}
	var name string
	if err := sqlx.GetContext(ctx, q, &name, `SELECT format('%s.%s', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1`, e.OID); err != nil {
		return err
	}
	if name != e.Name {
		return &Held{ReasonReplaced, "the table is now " + name + ", and " + e.Name + " may mean another one"}
	}
	return nil
}

// drop deletes the claims of what is in the partition, and then the table, if it is still exactly what the object has. Never CASCADE: what
// depends on it was made by somebody who wants it.
func (r *pass) drop(ctx context.Context, e *entry, m Manifest) error {
	name, err := relation(ctx, r.cfg.DB, e.OID)
	if err != nil || name == "" {
		return err
	}
	// Compared before anything is deleted, and again under the lock of the DROP.
	if err := r.read(ctx, func(tx *sqlx.Tx) error { return same(ctx, tx, e.OID, "ACCESS SHARE", m) }); err != nil {
		return err
	}
	if r.cfg.Table == keysTable {
		if err := r.forgetClaims(ctx, e); err != nil {
			return err
		}
	}
	failpoint("drop:claims")
	if err := r.write(ctx, e); err != nil { // whoever was overtaken drops nothing
		return err
	}
	err = r.alter(ctx, func(tx *sqlx.Tx) error {
		if err := same(ctx, tx, e.OID, "ACCESS EXCLUSIVE", m); err != nil {
			return err
		}
		if err := r.alone(ctx, tx, e); err != nil { // hours may have passed since it was asked first
			return err
		}
		name, err := relation(ctx, tx, e.OID) // the name that it has now, and not the one that it had before the lock
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DROP TABLE `+name)
		return err
	})
	if refused := pq.As(err, pqerror.DependentObjectsStillExist); refused != nil {
		return &Held{ReasonReferenced, refused.Detail}
	}
	if errors.Is(err, errGone) {
		return nil
	}
	if err == nil {
		r.sum.Dropped++
		failpoint("drop:dropped")
	}
	return err
}

// forgetClaims deletes the claims that name a row of the partition. A key that was executed anew since has its claim in a later partition,
// and keeps it. What is issued below the watermark is refused whether there is a claim or not.
func (r *pass) forgetClaims(ctx context.Context, e *entry) error {
	var last struct {
		Key       string `db:"idempotency_key"`
		CreatedAt string `db:"created_at"`
	}
	last.CreatedAt = "-infinity"
	for {
		err := r.alter(ctx, func(tx *sqlx.Tx) error {
			name, err := lockByOID(ctx, tx, e.OID, "ACCESS SHARE")
			if err != nil {
				return err
			}
			if err := r.alone(ctx, tx, e); err != nil { // nobody brings it back while we hold the lock
				return err
			}
			return tx.GetContext(ctx, &last, `
				WITH page AS MATERIALIZED (
					SELECT k.idempotency_key, k.created_at FROM `+name+` k WHERE (k.idempotency_key, k.created_at) > ($1, $2::timestamptz)
					ORDER BY k.idempotency_key, k.created_at LIMIT $3
				), gone AS (
					DELETE FROM idempotency.claims c USING page k
					WHERE c.key_digest = sha256(convert_to(k.idempotency_key, 'UTF8')) AND c.created_at = k.created_at
				)
				SELECT idempotency_key, created_at::text AS created_at FROM page ORDER BY 1 DESC, page.created_at DESC LIMIT 1`, last.Key, last.CreatedAt, claimsAtOnce)
		})
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("deleting the claims of archived keys: %w", err)
		}
	}
}
