package task

import (
	"errors"
	"strings"
	"testing"

	"github.com/callreceipt/reconciler/internal/testdb"
)

func TestARunIsOnRecordFromItsStartAndKeepsTheEndItHad(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	ctx := t.Context()
	if r, err := Latest(ctx, db, "reconcile", "T"); r != nil || err != nil {
		t.Errorf("before the first run: %+v %v", r, err)
	}
	id, err := Start(ctx, db, "reconcile", "T", "me", []byte(`{"settle":"30s"}`))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := Latest(ctx, db, "reconcile", "T"); err != nil || r == nil || r.ID != id || r.Outcome != "running" || r.Holder != "me" ||
		r.FinishedAt != nil || r.Error != nil || string(r.Counts) != "null" {
		t.Fatalf("while it runs: %+v %v", r, err)
	}
	if err := Finish(ctx, db, id, Partial, []byte(`{"scanned": 3}`), errors.New("broken")); err != nil {
		t.Fatal(err)
	}
	if err := Finish(ctx, db, id, Success, []byte(`{"scanned": 4}`), nil); err != nil {
		t.Fatal(err)
	}
	r, err := Latest(ctx, db, "reconcile", "T")
	if err != nil || r.Outcome != Partial || string(r.Counts) != `{"scanned": 3}` || r.Error == nil || *r.Error != "broken" ||
		r.FinishedAt == nil || r.FinishedAt.Before(r.StartedAt) {
		t.Errorf("afterwards: %+v %v", r, err)
	}
	if got := value[string](t, db, `SELECT policy FROM reconciler.runs`); got != `{"settle": "30s"}` {
		t.Errorf("policy %s", got)
	}
}

func TestTheLatestRunIsTheNewestOfItsTaskAndSubject(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	want := map[string]int64{}
	for _, subject := range []string{"T", "U", "T"} {
		for _, task := range []string{"reconcile", "archive"} {
			id, err := Start(t.Context(), db, task, subject, "me", nil)
			if err != nil {
				t.Fatal(err)
			}
			want[task+subject] = id
		}
	}
	for _, task := range []string{"reconcile", "archive"} {
		for _, subject := range []string{"T", "U"} {
			if r, err := Latest(t.Context(), db, task, subject); err != nil || r.ID != want[task+subject] || r.Task != task || r.Subject != subject {
				t.Errorf("%s %s: %+v %v", task, subject, r, err)
			}
		}
	}
}

func TestARunEndsOnRecordWhateverItsErrorSays(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	for text, want := range map[string]string{
		"a\x00b":                   "a?b",
		"a\xff\xfeb":               "a?b",
		"\x00":                     "?",
		"":                         "",
		"über\n\x1b[31m 退款":        "über\n\x1b[31m 退款",
		strings.Repeat("x", 1<<20): strings.Repeat("x", 1<<20),
	} {
		id, err := Start(t.Context(), db, "reconcile", "T", "me", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := Finish(t.Context(), db, id, Failed, nil, errors.New(text)); err != nil {
			t.Errorf("%.20q: %v", text, err)
			continue
		}
		r, err := Latest(t.Context(), db, "reconcile", "T")
		if err != nil || r.Outcome != Failed || r.Error == nil || *r.Error != want || string(r.Counts) != "null" {
			t.Errorf("%.20q: %+v %v", text, r, err)
		}
	}
}

func TestEveryHolderHasANameOfItsOwn(t *testing.T) {
	t.Parallel()
	if a, b := NewHolder(), NewHolder(); a == b || strings.Count(a, "/") < 2 {
		t.Errorf("%s and %s", a, b)
	}
}
