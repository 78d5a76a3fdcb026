package pending_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jmoiron/sqlx"

	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/pending"
)

// pages reads a range to its end. between runs before each further page.
func pages(t testing.TB, db *sqlx.DB, within pending.Range, limit int, between func(page pending.Page)) []pending.Call {
	t.Helper()
	store := pending.NewStore(db)
	var all []pending.Call
	for at := within.Start(); ; {
		page, err := store.Page(t.Context(), tool, within, at, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Calls) == 0 {
			return all
		}
		if len(page.Calls) > limit || page.ReadAt.IsZero() {
			t.Fatalf("%d calls on a page of %d, read at %s", len(page.Calls), limit, page.ReadAt)
		}
		all = append(all, page.Calls...)
		at = page.Next
		if between != nil {
			between(page)
		}
	}
}

func clock(t testing.TB, db *sqlx.DB) time.Time {
	t.Helper()
	now, err := pending.NewStore(db).Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// seata#3558: a row landed in a status that no scan covers.
func TestEveryStatusThatTheDatabaseAllowsIsFoundUnlessItIsTerminal(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	constraint := value[string](t, db, `SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'status_is_known'`)
	allowed := 0
	for _, part := range strings.Split(constraint, "'") {
		if part != "" && part == strings.ToUpper(part) && strings.ToLower(part) != part {
			allowed++
			if !slices.Contains(pending.Statuses, pending.Status(part)) {
				t.Errorf("the database allows %s, and the code does not know it", part)
			}
		}
	}
	if allowed != len(pending.Statuses) {
		t.Errorf("the database allows %d statuses, the code knows %d: %s", allowed, len(pending.Statuses), constraint)
	}
	want := []string{}
	for _, s := range pending.Statuses {
		park(t, db, string(s), fmt.Sprintf("status='%s'", s))
		if !s.Terminal() {
			want = append(want, string(s))
		}
	}
	got := ids(pages(t, db, pending.Due(clock(t, db)), 2, nil))
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 3 {
		t.Errorf("found: %s", diff)
	}
}

func TestPagesVisitRowsOfEqualDueTimeOnceEach(t *testing.T) {
	t.Parallel()
	dsn := testdb.URL(t)
	// The cursor is the server's own text of an instant, in whatever zone the session has.
	for _, zone := range []string{"UTC", "Asia/Shanghai", "America/St_Johns"} {
		db := testdb.Open(t, with(t, dsn, "TimeZone", zone))
		db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, next_check_at)
			SELECT $2 || n, 'B', $1, 'charge', timestamptz '2024-05-01 10:00:00.123456Z' + (n % 3) * interval '1 microsecond' FROM generate_series(1, 50) n`,
			tool, "C"+zone[:2])
	}
	db := testdb.Open(t, with(t, dsn, "TimeZone", "Asia/Shanghai"))
	got := ids(pages(t, db, pending.Due(clock(t, db)), 7, nil))
	slices.Sort(got)
	if n := len(got); n != 150 || len(slices.Compact(got)) != 150 {
		t.Errorf("%d rows were read, %d of them different", n, len(slices.Compact(got)))
	}
}

func TestPagesVisitEveryRowOnceWhileTheRowsBehindMoveAway(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]string{
		"to a later time":  "next_check_at = now() + interval '1 hour'",
		"to the past":      "next_check_at = '-infinity'",
		"to a final state": "status = 'SUCCESS'",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.MustExec(`INSERT INTO reconciler.pending_confirmations (call_id, biz_id, tool, operation, next_check_at)
				SELECT 'C' || n, 'B', $1, 'charge', now() - (n % 4) * interval '1 minute' FROM generate_series(1, 60) n`, tool)
			got := ids(pages(t, db, pending.Due(clock(t, db)), 7, func(p pending.Page) {
				for _, id := range ids(p.Calls) {
					db.MustExec(`UPDATE reconciler.pending_confirmations SET `+set+` WHERE call_id = $1`, id)
				}
			}))
			slices.Sort(got)
			if n := len(got); n != 60 || len(slices.Compact(got)) != 60 {
				t.Errorf("%d rows were read, %d of them different", n, len(slices.Compact(got)))
			}
		})
	}
}

func TestInstantsThatGoCannotHoldAreReadAndEveryRowIsInOneRange(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	due := []string{"-infinity", "4713-01-01 BC", "0044-03-15 BC", "0001-01-01", "2024-05-01"}
	astray := []string{"9999-12-31", "10000-01-01", "294276-12-31", "infinity"}
	for _, at := range slices.Concat(due, astray) {
		for _, column := range []string{"issued_at", "last_sent_at", "not_found_since", "created_at"} {
			park(t, db, at+" "+column, "next_check_at='"+at+"'", column+"='"+at+"'")
		}
	}
	park(t, db, "soon", "next_check_at=now() + interval '30 days'")
	now := clock(t, db)
	for _, tt := range []struct {
		name   string
		within pending.Range
		want   []string
	}{{"due", pending.Due(now), due}, {"astray", pending.Astray(now), astray}} {
		var got []string
		for i, c := range pages(t, db, tt.within, 3, nil) {
			if i%4 == 0 {
				got = append(got, strings.TrimSuffix(c.CallID, " created_at"))
			}
			for _, at := range []time.Time{c.IssuedAt, c.LastSentAt, c.CreatedAt} {
				if at.Year() < 1 || at.Year() > 9999 {
					t.Errorf("%s: the year %d cannot be spelled in JSON", c.CallID, at.Year())
				}
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

func TestOnlyTheToolThatWasAskedForIsRead(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "mine")
	park(t, db, "other", "tool='payment.refund'")
	park(t, db, "later", "next_check_at=now() + interval '1 minute'")
	if got := ids(pages(t, db, pending.Due(clock(t, db)), 10, nil)); len(got) != 1 || got[0] != "mine" {
		t.Errorf("read %v", got)
	}
}

func TestSiblingsAreTheDueCallsOfTheSameBusinessBehindTheCursor(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	park(t, db, "C0", "biz_id='B0'", "next_check_at='2024-05-01'")
	park(t, db, "C1", "biz_id='B1'", "next_check_at='2024-05-01'")
	park(t, db, "C2", "biz_id='B1'", "next_check_at='2024-05-01'")
	park(t, db, "C3", "biz_id='B0'", "next_check_at='2024-05-02'", "status='MANUAL'")
	park(t, db, "later", "biz_id='B0'", "next_check_at=now() + interval '1 hour'")
	park(t, db, "final", "biz_id='B0'", "status='SUCCESS'")
	park(t, db, "other tool", "biz_id='B0'", "tool='payment.refund'")
	park(t, db, "other business", "biz_id='B2'")
	store := pending.NewStore(db)
	within := pending.Due(clock(t, db))
	page, err := store.Page(t.Context(), tool, within, within.Start(), 2)
	if err != nil || len(page.Calls) != 2 {
		t.Fatalf("%v %v", page, err)
	}
	for limit, want := range map[int]int{10: 2, 1: 1, 0: 0} {
		calls, err := store.Siblings(t.Context(), tool, within, page.Next, []string{"B0", "B1"}, limit)
		got := ids(calls)
		slices.Sort(got)
		if err != nil || len(got) != want || want == 2 && strings.Join(got, " ") != "C2 C3" {
			t.Errorf("at most %d: %v %v", limit, got, err)
		}
	}
	park(t, db, "C4", "biz_id='B0'")
	park(t, db, "C5", "biz_id='B0'")
	calls, err := store.Siblings(t.Context(), tool, within, page.Next, []string{"B0"}, 2)
	if err != nil || len(calls) != 2 {
		t.Errorf("at most two: %v %v", ids(calls), err)
	}
}

func TestCallsOfToolsThatNobodyConfiguredAreCountedToALimit(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for i, name := range []string{"a", "a", "a", "b", "c", "c"} {
		park(t, db, fmt.Sprint("C", i), "tool='"+name+"'")
	}
	park(t, db, "final", "tool='d'", "status='FAILED'")
	park(t, db, "manual", "tool='e'", "status='MANUAL'")
	store := pending.NewStore(db)
	for _, tt := range []struct {
		known []string
		limit int
		want  []pending.ToolCount
	}{
		{[]string{"b", "zzz"}, 2, []pending.ToolCount{{"a", 2}, {"c", 2}, {"e", 1}}},
		{[]string{"a", "c", "e"}, 10, []pending.ToolCount{{"b", 1}}},
		{[]string{"a", "b", "c", "e"}, 10, nil},
		{[]string{}, 10, []pending.ToolCount{{"a", 3}, {"b", 1}, {"c", 2}, {"e", 1}}},
		{nil, 10, []pending.ToolCount{{"a", 3}, {"b", 1}, {"c", 2}, {"e", 1}}},
	} {
		got, err := store.UnknownTools(t.Context(), tt.known, tt.limit)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("known %q: %v %s", tt.known, err, diff)
		}
	}
}

func TestAnEmptyTableHasNoUnknownTools(t *testing.T) {
	t.Parallel()
	got, err := pending.NewStore(testdb.New(t)).UnknownTools(t.Context(), nil, 10)
	if err != nil || len(got) != 0 {
		t.Errorf("%v %v", got, err)
	}
}

func TestWithoutADatabaseEveryReadSaysSo(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "postgres://x@127.0.0.1:1/x?sslmode=disable")
	store := pending.NewStore(db)
	within := pending.Due(time.Now())
	_, page := store.Page(t.Context(), tool, within, within.Start(), 1)
	_, siblings := store.Siblings(t.Context(), tool, within, within.Start(), []string{"B"}, 1)
	_, get := store.Get(t.Context(), []string{"C"})
	_, now := store.Now(t.Context())
	_, tools := store.UnknownTools(t.Context(), nil, 1)
	_, list := store.List(t.Context(), pending.Filter{})
	_, find := store.Find(t.Context(), "C")
	_, ledger := store.Ledger(t.Context(), "C", 1)
	_, apply := store.Apply(t.Context(), []pending.Change{{}})
	_, against := store.RecordContradictions(t.Context(), nil, nil)
	_, retries := pending.TakeRetries(t.Context(), db, tool, 1)
	_, suspend := pending.Suspend(t.Context(), db, suspension("C"))
	partitions := store.EnsureEventPartitions(t.Context())
	for i, err := range []error{page, siblings, get, now, tools, list, find, ledger, apply, against, retries, suspend, partitions} {
		if !database.Unreachable(err) || errors.Is(err, pending.ErrNoSuchCall) {
			t.Errorf("%d. %v", i+1, err)
		}
	}
}
