package demo

import (
	"testing"

	"github.com/callreceipt/reconciler/internal/testdb"
	"github.com/callreceipt/reconciler/migrations"
	"github.com/callreceipt/reconciler/toolcall"
)

// The bounds of toolcall are those of a caller in a hurry; a call that it could not park must not be lost for that.
func TestACallThatCouldNotBeParkedInTimeIsParkedAllTheSame(t *testing.T) {
	t.Parallel()
	c := Call{CallID: "A-1", BizID: "A", Tool: Tools[0], Account: accountOrdinary, LookUp: HangUp, faults: []Fault{CutAnswer}}
	plan := [][]Call{{c}}
	d, _ := listening(t, plan...)
	db, closed := testdb.New(t, migrations.Reconciler), testdb.New(t, migrations.Reconciler)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	o, err := newOrchestrator(t.Context(), Config{Calls: 1}, db, d.url, plan)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.close)
	if o.tools, err = toolcall.New(toolcall.Config{DB: closed, Tools: []toolcall.Tool{c.Tool.called(d.url)}}); err != nil {
		t.Fatal(err)
	}
	if err := o.callOne(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	rows, err := readRows(t.Context(), db)
	if err != nil || rows[c.CallID].Attempt != 1 || o.outcomes[0].Status != toolcall.Suspended || o.parked.Load() != 1 {
		t.Errorf("%+v, %+v, %v", rows, o.outcomes[0], err)
	}
}
