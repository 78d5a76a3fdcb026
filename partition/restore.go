package partition

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/internal/task"
)

// Restored is what was brought back; its JSON field names are a contract.
type Restored struct {
	Table     string `json:"table"`
	Partition string `json:"partition"`
	Rows      int64  `json:"rows"`
	Digest    string `json:"digest"`
	Object    string `json:"object"`
}

// Restore brings a partition back under its parent: one that is detached is attached again, one that was dropped is loaded from its
// archive object. Either way its rows are compared with the object first. It takes writes again, and is left alone by archiving for as
// long as a detached one is kept. The watermark stays: what was issued below it is still refused.
//
// name is schema.name as the journal has it, or the name alone. *task.HeldError means that another holder works on the table.
func (a *Archiver) Restore(ctx context.Context, name string) (done Restored, err error) {
	err = task.Hold(ctx, a.cfg.Control, a.cfg.Log, "archive:"+a.Subject(), a.cfg.Holder, func(ctx context.Context) error {
		r := &pass{Archiver: a}
		if _, _, err := r.settled(ctx); err != nil {
			return err
		}
		done, err = r.restore(ctx, name)
		return err
	})
	return done, err
}

func (r *pass) restore(ctx context.Context, name string) (done Restored, err error) {
	e, err := r.archived(ctx, name)
	if err != nil {
		return done, err
	}
	m, err := verify(ctx, r.manifest(e))
	if err != nil {
		return done, err
	}
	if m.Bounds != e.Bounds || m.Digest != e.Digest.String {
		return done, &Problem{m.Object, "the object is of another partition, or of other rows, than the journal says"}
	}
	done = Restored{Table: r.cfg.Table, Partition: e.Name, Rows: m.Rows, Digest: m.Digest, Object: m.Object}
	was := *e
	err = r.step(ctx, e, StepRestored, func() error {
		is, err := r.attachmentOf(ctx, r.cfg.DB, e.OID)
		if err == nil && is == missing {
			err = r.rebuild(ctx, e, m)
		}
		if err != nil {
			return err
		}
		if err := r.read(ctx, func(tx *sqlx.Tx) error { return sameAsArchived(ctx, tx, e.OID, m) }); err != nil {
			return err
		}
		if err := r.remember(ctx, e); err != nil {
			return err
		}
		if err := r.attach(ctx, e.OID, e.Bounds); err != nil {
			return err
		}
		failpoint("restore:attached")
		return r.unfreeze(ctx, e.OID)
	})
	if h := asHeld(err); h != nil && was.ended(StepDetached) {
		e.Step, e.Done = was.Step, was.Done // it stays detached, and in sight
		err = errors.Join(err, r.hold(ctx, e, h))
	}
	return done, err
}

// archived finds the latest entry of that name which is not attached.
func (r *pass) archived(ctx context.Context, name string) (*entry, error) {
	all, err := r.entries(ctx, true)
	if err != nil {
		return nil, err
	}
	var found *entry
	for i := range all {
		if e := &all[i]; e.Name == name || strings.TrimPrefix(e.Name, r.schema+".") == name {
			found = e
		}
	}
	var is attachment
	if found != nil {
		if is, err = r.attachmentOf(ctx, r.cfg.DB, found.OID); err != nil {
			return nil, err
		}
	}
	switch {
	case found == nil:
		return nil, fmt.Errorf("partition %s of %s: %w", printable.ID(name), r.cfg.Table, ErrNoSuchPartition)
	case found.ended(StepDetached), found.Step == StepDropped, found.Step == StepRestored && (!found.Done || is != attached):
		if !found.Object.Valid {
			return nil, &Problem{found.Name, "it was dropped by somebody else, and there is no archive object of it"}
		}
		return found, nil
	}
	return nil, &Problem{found.Name, fmt.Sprintf("it is still attached (%s); there is nothing to restore", found.Step)}
}

// ErrNoSuchPartition is returned for a name that the journal does not know.
var ErrNoSuchPartition = errors.New("the journal knows no such partition; 'reconciler partitions list' shows those that it knows")

// rebuild loads the object into a table of the old name. A table that a run before this one built and did not attach is taken over when it
// has the rows of the object.
func (r *pass) rebuild(ctx context.Context, e *entry, m Manifest) error {
	schema, name, _ := strings.Cut(e.Name, ".")
	quoted := pq.QuoteIdentifier(schema) + `.` + pq.QuoteIdentifier(name)
	err := r.alter(ctx, func(tx *sqlx.Tx) error {
		if err := tx.GetContext(ctx, &e.OID, `SELECT coalesce(to_regclass($1)::oid, 0)`, quoted); err != nil || e.OID != 0 {
			return err
		}
		p, err := r.parent(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, likeParent(quoted, p)); err != nil {
			return err
		}
		if _, err := load(ctx, tx, quoted, m, r.objects()); err != nil {
			return err
		}
		if err := tx.GetContext(ctx, &e.OID, `SELECT $1::regclass::oid`, quoted); err != nil {
			return err
		}
		failpoint("restore:loaded")
		return sameAsArchived(ctx, tx, e.OID, m)
	})
	if err != nil {
		return err
	}
	return r.write(ctx, e) // the new oid
}

// sameAsArchived is same in the columns of the archive: a table that is restored may have more.
func sameAsArchived(ctx context.Context, tx *sqlx.Tx, oid uint32, m Manifest) error {
	name, err := lockByOID(ctx, tx, oid, "ACCESS SHARE")
	if err != nil {
		return err
	}
	return m.equals(ctx, tx, name, m.Columns)
}

// remember makes the claims of a partition that comes back. Those of one that is not dropped yet may be gone as well: a run that was
// killed, or that was held at the DROP, has deleted them. A repeat of what is remembered again gets its result again; what was executed
// anew meanwhile has a claim of its own.
func (r *pass) remember(ctx context.Context, e *entry) error {
	if r.cfg.Table != keysTable {
		return nil
	}
	return r.alter(ctx, func(tx *sqlx.Tx) error {
		name, err := lockByOID(ctx, tx, e.OID, "ACCESS SHARE")
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `
			INSERT INTO idempotency.claims (key_digest, created_at)
			SELECT DISTINCT ON (k.idempotency_key) sha256(convert_to(k.idempotency_key, 'UTF8')), k.created_at FROM `+name+` k
			ORDER BY k.idempotency_key, k.created_at DESC ON CONFLICT DO NOTHING`)
		return err
	})
}
