package docs_test

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"
	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
)

// refusal is how PostgreSQL refused: its SQLSTATE, and whether it names a constraint.
func refusal(err error) string {
	e, ok := errors.AsType[*pq.Error](err)
	switch {
	case !ok:
		return fmt.Sprint(err)
	case e.Constraint == "":
		return string(e.Code)
	case e.Constraint == "call_of_one_intent":
		return string(e.Code) + " " + e.Constraint
	}
	return string(e.Code) + " with a constraint"
}

func TestPostgreSQLRefusesAsTheGuideSays(t *testing.T) {
	t.Parallel()
	changed := func(change func(c *call)) call {
		c := newCall("ORD-1-0001", "ORD-1", 1, `{}`)
		change(&c)
		return c
	}
	for name, bad := range map[string]struct {
		call
		want string
	}{
		"a body that is no JSON":       {changed(func(c *call) { c.body = `{"` }), "22P02"},
		"a body that is no object":     {changed(func(c *call) { c.body = `7` }), "22023"},
		"a body with a NUL":            {changed(func(c *call) { c.body = `{"a":"\u0000"}` }), "22P05"},
		"a timestamp that is none":     {changed(func(c *call) { c.issuedAt = "yesterday" }), "22004"},
		"a timestamp without a zone":   {changed(func(c *call) { c.issuedAt = "2026-05-01T10:00:00" }), "22004"},
		"a timestamp of no calendar":   {changed(func(c *call) { c.issuedAt = "2026-15-01T10:00:00Z" }), "22008"},
		"no callId":                    {changed(func(c *call) { c.id = "" }), "23514 with a constraint"},
		"no key":                       {changed(func(c *call) { c.key = "" }), "23514 with a constraint"},
		"a callId with a line break":   {changed(func(c *call) { c.id = "a\nb" }), "23514 with a constraint"},
		"attempt 0":                    {changed(func(c *call) { c.attempt = 0 }), "23514 with a constraint"},
		"a callId of another intent":   {newCall("TAKEN", "ORD-1", 1, `{}`), "23505 call_of_one_intent"},
		"a callId of another key":      {changed(func(c *call) { c.id, c.biz, c.key = "TAKEN", "ORD-0", "ORD-0:charge:2" }), "23505 call_of_one_intent"},
		"a key that is being executed": {newCall("ORD-2-0001", "ORD-2", 1, `{}`), "55P03"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDownstream(t)
			if _, _, err := newCall("TAKEN", "ORD-0", 1, `{}`).serve(t, db, nil); err != nil {
				t.Fatal(err)
			}
			other := db.MustBegin()
			defer func() { _ = other.Rollback() }()
			if _, err := newCall("ORD-2-0002", "ORD-2", 1, `{}`).arrive(t, other); err != nil {
				t.Fatal(err)
			}
			_, _, err := bad.serve(t, db, nil)
			if got := refusal(err); got != bad.want {
				t.Errorf("%s, want %s: %v", got, bad.want, err)
			}
			if left := rows(t, db, `SELECT biz_id FROM payments`); !cmp.Equal(left, []string{"ORD-0"}) {
				t.Errorf("refused, and there are payments of %v", left)
			}
		})
	}
}

func TestPostgreSQLRefusesOutOfOrderAsTheGuideSays(t *testing.T) {
	t.Parallel()
	db := newDownstream(t)
	c := newCall("ORD-1-0001", "ORD-1", 1, `{}`)
	if _, _, err := c.serve(t, db, nil); err != nil {
		t.Fatal(err)
	}
	now := rows(t, db, `SELECT created_at::text FROM idempotency.claims`)[0]
	if got := refusal(c.settle(t, db, arrival{CreatedAt: &now}, "SUCCESS", `{}`)); got != "23000" {
		t.Errorf("settled again: %s", got)
	}
	var a arrival
	err := db.GetContext(t.Context(), &a, guide(t, arrive), c.body, c.key, c.biz, c.operation, c.id, nil, c.issuedAt)
	if got := refusal(err); got != "23502" {
		t.Errorf("without an attempt: %s", got)
	}
	db.MustExec(`DO $$ DECLARE p regclass; BEGIN
		FOR p IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'idempotency.keys'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$`)
	_, _, err = newCall("ORD-2-0001", "ORD-2", 1, `{}`).serve(t, db, nil)
	if got := refusal(err); got != "23514" {
		t.Errorf("without a partition: %s", got)
	}
	db.MustExec(guide(t, partitions))
	if outcome, _, err := newCall("ORD-2-0001", "ORD-2", 1, `{}`).serve(t, db, nil); err != nil || outcome != "EXECUTE" {
		t.Errorf("once there is one: %s %v", outcome, err)
	}
}

// as opens the database of an owner as one of the roles of the guide.
func as(t *testing.T, owner, role string) *sqlx.DB {
	t.Helper()
	dsn, err := url.Parse(owner)
	if err != nil {
		t.Fatal(err)
	}
	dsn.User = url.UserPassword(role, "change-me")
	return testdb.Open(t, dsn.String())
}

func TestTheRolesOfTheGuideCanDoTheirWorkAndNoMore(t *testing.T) {
	t.Parallel()
	fromURL, toURL := testdb.URL(t, migrations.Downstream), testdb.URL(t, migrations.Downstream)
	owner, otherOwner := testdb.Open(t, fromURL), testdb.Open(t, toURL)
	own := fmt.Sprint("_", os.Getpid()) // roles belong to the server, which may be shared
	roles := []string{"payment_service" + own, "receipt_relay" + own, "receipt_query" + own}
	role := regexp.MustCompile(`payment_service|receipt_relay|receipt_query`)
	if _, err := owner.ExecContext(t.Context(), role.ReplaceAllString(guide(t, rights), "${0}"+own)); refusal(err) == "42501" {
		t.Skip("this server lets us make no roles")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, role := range roles {
			for _, db := range []*sqlx.DB{owner, otherOwner} {
				db.MustExec(`DROP OWNED BY ` + pq.QuoteIdentifier(role))
			}
			owner.MustExec(`DROP ROLE ` + pq.QuoteIdentifier(role))
		}
	})
	otherOwner.MustExec(role.ReplaceAllString(guide(t, otherRights), "${0}"+own))
	owner.MustExec(guide(t, ownTable) + guide(t, outboxOn) + `; GRANT SELECT, INSERT ON payments TO ` + roles[0])

	service := as(t, fromURL, roles[0])
	for attempt, want := range []string{"EXECUTE", "REPEAT"} {
		if outcome, _, err := newCall("C-1", "ORD-1", attempt+1, `{}`).serve(t, service, nil); err != nil || outcome != want {
			t.Errorf("%s, want %s: %v", outcome, want, err)
		}
	}
	twoSteps := newCall("C-2", "ORD-2", 1, `{}`)
	err := database.InTx(t.Context(), service, func(tx *sqlx.Tx) error {
		a, err := twoSteps.arrive(t, tx)
		if err == nil {
			err = twoSteps.settle(t, tx, a, "PROCESSING", nil)
		}
		if err == nil {
			_, err = tx.ExecContext(t.Context(), guide(t, complete), twoSteps.key, a.CreatedAt, twoSteps.id, 1, "SUCCESS", `{}`)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	rows(t, service, guide(t, partitions))
	records(t, service, guide(t, unfinished))
	owner.MustExec(guide(t, raise), "2026-06-01Z")
	if outcome, _, err := newCall("C-3", "ORD-3", 1, `{}`).serve(t, service, nil); err != nil || outcome != "EXPIRED" {
		t.Errorf("%s, want EXPIRED: %v", outcome, err)
	}
	otherOwner.MustExec(guide(t, outboxKeep), "C-2", "ORD-9", "charge", "ORD-9:charge", "SUCCESS", `{}`, 1, "2026-05-01Z")
	delivered, refused := relay(t, as(t, fromURL, roles[1]), as(t, toURL, roles[1]), true)
	if len(delivered) != 2 || len(refused) != 2 {
		t.Errorf("delivered %v, refused %v, want C-1 twice, and C-2 twice", delivered, refused)
	}
	if got := ask(t, as(t, toURL, roles[2]), false, "ORD-1", "ORD-2"); len(got) != 2 || got[1] != "ORD-2 not found" {
		t.Error(got)
	}
	for _, forbidden := range []struct {
		dsn, role  string
		statements []string
	}{
		{fromURL, roles[0], []string{`DELETE FROM idempotency.receipts`, `DELETE FROM idempotency.keys`, `UPDATE idempotency.watermarks SET watermark = now()`, guide(t, outboxOn)}},
		{fromURL, roles[1], []string{`DELETE FROM idempotency.receipts`, `SELECT count(*) FROM idempotency.keys`, `SELECT count(*) FROM payments`}},
		{toURL, roles[2], []string{`UPDATE idempotency.receipts SET attempt = 7`, `SELECT count(*) FROM idempotency.keys`}},
	} {
		db := as(t, forbidden.dsn, forbidden.role)
		for _, statement := range forbidden.statements {
			if _, err := db.ExecContext(t.Context(), statement); refusal(err) != "42501" {
				t.Errorf("%s may %s: %v", forbidden.role, statement, err)
			}
		}
	}
}
