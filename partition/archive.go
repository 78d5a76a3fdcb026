package partition

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jmoiron/sqlx"
)

// walk takes one partition through its steps. Each is repeated safely: what a run that was killed has done already is found in the
// catalog and in the archive, and not trusted to the journal.
func (r *pass) walk(ctx context.Context, p Partition, e *entry) error {
	if err := r.check(ctx, e); err != nil {
		return err
	}
	r.began(e)
	for _, step := range []struct {
		name Step
		do   func(context.Context, Partition, *entry) error
	}{
		{StepFrozen, r.frozen},
		{StepExported, r.exported},
		{StepVerified, r.verified},
		{StepWatermark, r.watermark},
		{StepDetached, r.detached},
	} {
		if err := r.step(ctx, e, step.name, func() error { return step.do(ctx, p, e) }); err != nil {
			return err
		}
	}
	return nil
}

// step journals a step before it begins and when it has ended.
func (r *pass) step(ctx context.Context, e *entry, s Step, do func() error) error {
	if err := r.begin(ctx, e, s); err != nil {
		return err
	}
	failpoint(string(s) + ":journalled")
	r.progress(e, 0)
	err := do()
	r.cfg.Metrics.Step(string(s), err != nil && asHeld(err) == nil)
	if err != nil {
		return err
	}
	failpoint(string(s) + ":done")
	if err := r.end(ctx, e); err != nil {
		return err
	}
	failpoint(string(s) + ":ended")
	return nil
}

// check asks whether the business of the partition is over, before anything is done to it. Once the watermark is raised nobody can
// begin anything in it, and its open calls go to a person.
func (r *pass) check(ctx context.Context, e *entry) error {
	failpoint("check:begun")
	return r.over(ctx, e.OID)
}

// frozen makes the partition refuse writes, and asks again about the calls that are still open: those may be in another database, where
// no lock of ours reaches.
func (r *pass) frozen(ctx context.Context, _ Partition, e *entry) error {
	if err := r.freeze(ctx, e.OID); err != nil {
		return err
	}
	return r.over(ctx, e.OID)
}

// exported writes the archive object, unless a run before this one did.
func (r *pass) exported(ctx context.Context, p Partition, e *entry) error {
	if e.Object.Valid {
		if m, err := verify(ctx, r.manifest(e)); err == nil && m.OID == e.OID && m.Bounds == p.Bounds {
			return nil // verified compares it with the table
		}
	}
	var m Manifest
	err := r.patiently(ctx, func() (err error) {
		m, err = export(ctx, r.cfg.DB, r.source(p), r.dir(), func(rows int64) { r.progress(e, rows) })
		return err
	})
	if err != nil {
		return err
	}
	e.Rows.Int64, e.Rows.Valid = m.Rows, true
	e.Bytes.Int64, e.Bytes.Valid = m.Bytes, true
	e.Digest, e.Object = text(m.Digest), text(m.Object)
	r.sum.Exported++
	r.sum.Rows += m.Rows
	r.sum.Bytes += m.Bytes
	r.cfg.Metrics.Archived(m.Rows, m.Bytes)
	return nil
}

// verified reads the object back and compares it with what the database says of the table now.
func (r *pass) verified(ctx context.Context, _ Partition, e *entry) error {
	m, err := verify(ctx, r.manifest(e))
	if err != nil {
		return &Held{ReasonObjectDamaged, err.Error()}
	}
	failpoint("verify:read")
	return r.read(ctx, func(tx *sqlx.Tx) error { return same(ctx, tx, e.OID, "ACCESS SHARE", m) })
}

// same holds the partition unless the table with the oid has exactly the rows of the manifest, in all of its columns. It takes a lock
// until the end of tx.
func same(ctx context.Context, tx *sqlx.Tx, oid uint32, mode string, m Manifest) error {
	name, err := lockByOID(ctx, tx, oid, mode)
	if err != nil {
		return err
	}
	columns, err := columnsOf(ctx, tx, oid)
	if err != nil {
		return err
	}
	return m.equals(ctx, tx, name, columns)
}

// equals holds the partition unless these columns of the table with that name, as SQL, have exactly the rows of the manifest.
func (m Manifest) equals(ctx context.Context, tx *sqlx.Tx, name string, columns []Column) error {
	rows, digest, err := digestOf(ctx, tx, name, columns)
	if err != nil {
		return err
	}
	if rows != m.Rows || digest != m.Digest {
		return &Held{ReasonChangedAfterFreeze, fmt.Sprintf("the archive has %d rows with digest %s, the table %d with %s", m.Rows, m.Digest, rows, digest)}
	}
	return nil
}

// watermark lets nobody execute or send again what was issued before the upper bound: first where the guard looks, then where the
// reconciler does. It is only ever raised.
func (r *pass) watermark(ctx context.Context, p Partition, _ *entry) error {
	upper, ok := p.Range.Upper.Time()
	if !ok {
		return &Problem{p.Schema + "." + p.Name, "its upper bound is no instant, so no watermark can be raised to it"}
	}
	err := r.alter(ctx, func(tx *sqlx.Tx) error {
		var guarded bool
		if err := tx.GetContext(ctx, &guarded, `SELECT to_regclass('idempotency.watermarks') IS NOT NULL`); err != nil {
			return err
		}
		if !guarded {
			if r.cfg.Table == keysTable {
				return &Problem{"idempotency.watermarks", "the table is missing, so the guard would not refuse late calls; run 'reconciler migrate up --for downstream'"}
			}
			return nil
		}
		return raise(ctx, tx, "idempotency.watermarks", r.cfg.Table, upper)
	})
	if err != nil {
		return err
	}
	failpoint("watermark:first")
	return r.control(ctx, func(tx *sqlx.Tx) error { return raise(ctx, tx, "reconciler.archive_watermarks", r.cfg.Table, upper) })
}

// keysTable is the guard's own, whose claims and watermark are looked after as well.
const keysTable = "idempotency.keys"

func raise(ctx context.Context, tx *sqlx.Tx, watermarks, table string, to time.Time) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO `+watermarks+` AS w (table_name, watermark) VALUES ($1, $2)
		ON CONFLICT (table_name) DO UPDATE SET watermark = excluded.watermark, raised_at = clock_timestamp() WHERE w.watermark < excluded.watermark`, table, to)
	return err
}

// detached takes the partition out of the table. Until now nothing was lost that somebody could miss, and from here on it is only in the
// archive and in a table of its own.
func (r *pass) detached(ctx context.Context, _ Partition, e *entry) error {
	if err := r.unreferenced(ctx, e.OID); err != nil {
		return err
	}
	if err := r.write(ctx, e); err != nil { // what came before may have taken hours: whoever was overtaken detaches nothing
		return err
	}
	return r.finished(ctx, e)
}

func (r *pass) source(p Partition) source {
	return source{
		OID: p.OID, Table: r.cfg.Table, Database: r.cfg.Database, Schema: p.Schema, Name: p.Name, Bounds: p.Bounds,
		Lower: p.Range.Lower.String(), Upper: p.Range.Upper.String(), Key: r.parentKey,
	}
}

// manifest is the path of the manifest of an entry's object.
func (a *Archiver) manifest(e *entry) string {
	return manifestOf(filepath.Join(a.objects(), e.Object.String))
}

// dir is where the archive of the table's database begins.
func (a *Archiver) dir() string {
	if a.cfg.Database == "" {
		return a.cfg.Dir
	}
	return filepath.Join(a.cfg.Dir, escape(a.cfg.Database))
}

// objects is the directory of the table's own objects.
func (a *Archiver) objects() string {
	return filepath.Join(a.dir(), escape(a.schema)+"."+escape(a.name))
}
