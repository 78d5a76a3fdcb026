package demo

import (
	"slices"
	"testing"
	"time"

	"github.com/callreceipt/reconciler/receipt"
)

func TestACallerThatIsCutOffLearnsNothingAndTheReconcilerEverything(t *testing.T) {
	t.Parallel()
	for _, fault := range []Fault{HangUp, Swallow} {
		cut := Call{CallID: "A-1", BizID: "A", Tool: Tools[0], Account: accountOrdinary, LookUp: fault}
		free := Call{CallID: "B-1", BizID: "B", Tool: Tools[0], Account: accountOrdinary}
		d, _ := listening(t, []Call{cut}, []Call{free})
		for _, c := range []Call{cut, free} {
			if kept := d.send(t, c, 1); kept.Status != receipt.StatusSuccess {
				t.Fatalf("%+v", kept)
			}
		}
		client, err := receipt.NewClient(receipt.Config{URL: d.url + receiptsPath, Timeout: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		if answer, err := client.QueryCalls(t.Context(), []string{cut.CallID}); err == nil {
			t.Errorf("fault %d: the caller was told %+v", fault, answer)
		}
		if answer, err := client.QueryCalls(t.Context(), []string{free.CallID}); err != nil || answer.Of[free.CallID].Presence != receipt.Present {
			t.Errorf("another caller was told %+v, %v", answer, err)
		}
		if answer, err := client.Query(t.Context(), []string{cut.BizID}); err != nil || answer.Of[cut.BizID].Presence != receipt.Present {
			t.Errorf("fault %d: the reconciler was told %+v, %v", fault, answer, err)
		}
		if seen, brought := d.network.sightings(cut.CallID); !slices.Equal(seen, []int{1, lookUp}) || !brought {
			t.Errorf("fault %d: the network saw %v, brought %v", fault, seen, brought)
		}
	}
}

func TestASendIsLostOrDeliveredAsPlanned(t *testing.T) {
	t.Parallel()
	c := Call{CallID: "A-1", BizID: "A", Tool: Tools[0], Account: accountOrdinary, faults: []Fault{HangUp, CutAnswer}}
	d, db := listening(t, []Call{c})
	if kept := d.send(t, c, 1); kept.Status != "" {
		t.Errorf("a lost send was answered: %+v", kept)
	}
	if _, brought := d.network.sightings(c.CallID); brought {
		t.Error("a lost send was brought")
	}
	if kept := d.send(t, c, 2); kept.Status != "" {
		t.Errorf("a lost answer came: %+v", kept)
	}
	if kept := d.send(t, c, 3); kept.Status != receipt.StatusSuccess || kept.Attempt != 3 {
		t.Errorf("a further send: %+v", kept)
	}
	if seen, brought := d.network.sightings(c.CallID); !slices.Equal(seen, []int{1, 2, 3}) || !brought {
		t.Errorf("the network saw %v, brought %v", seen, brought)
	}
	if books, err := readBooks(t.Context(), db); err != nil || len(books.Effects) != 1 || books.Effects[0].Attempt != 2 {
		t.Errorf("%+v, %v", books, err)
	}
}
