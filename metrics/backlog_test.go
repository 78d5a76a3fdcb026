package metrics

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/lib/pq"
)

var errNobody = errors.New("nobody is there")

func TestTheBacklogIsWhatTheDatabaseSays(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	m.Tool("T", charge)
	quiet := charge
	quiet.Notify = false
	m.Tool("Q", quiet)
	want := map[string]float64{
		`pending_calls{status="PENDING",tool="T"}`:        3,
		`pending_calls{status="RETRY",tool="T"}`:          100_000,
		`pending_calls{status="MANUAL",tool="T"}`:         0,
		`oldest_pending_call_timestamp_seconds{tool="T"}`: seconds(noon.Add(-time.Hour)),
		`notifications_pending{tool="T"}`:                 7,
		`pending_calls{status="PENDING",tool="Q"}`:        1,
		`pending_calls{status="RETRY",tool="Q"}`:          0,
		`pending_calls{status="MANUAL",tool="Q"}`:         0,
		`oldest_pending_call_timestamp_seconds{tool="Q"}`: seconds(noon),
		`unknown_tool_calls`:                              12,
	}
	set := func() {
		m.SetBacklog("T", Backlog{Pending: 3, Retry: 2_000_000, NotificationsPending: 7, Oldest: noon.Add(-time.Hour)})
		m.SetBacklog("Q", Backlog{Pending: 1, Oldest: noon})
		m.SetUnknownTools(12)
	}
	same(t, "set", want, changes(t, reg, set))
	m.SetBacklog("T", Backlog{Manual: 1})
	if v := shown(t, reg)[`oldest_pending_call_timestamp_seconds{tool="T"}`]; !math.IsNaN(v) {
		t.Errorf("the oldest of none is %g", v)
	}

	gone := map[string]float64{}
	for series := range want {
		gone[series] = -1
	}
	same(t, "unknown", gone, changes(t, reg, m.BacklogUnknown))
	same(t, "known again", want, changes(t, reg, set))
}

func TestErrorsOfTheDatabaseAreToldApart(t *testing.T) {
	t.Parallel()
	m, reg, _ := newMetrics()
	for _, c := range []struct {
		err   error
		class string
	}{
		{driver.ErrBadConn, "unreachable"},
		{fmt.Errorf("paging: %w", &pq.Error{Code: "57P01"}), "unreachable"},
		{&pq.Error{Code: "40P01"}, "busy"},
		{&pq.Error{Code: "55P03"}, "busy"},
		{&pq.Error{Code: "22P05"}, "refused"},
		{&pq.Error{Code: "42P01"}, "other"},
		{errNobody, "other"},
		{nil, ""},
		{fmt.Errorf("paging: %w", context.Canceled), ""},
	} {
		series := `db_errors_total{class="` + c.class + `"}`
		want := map[string]float64{series: shown(t, reg)[series] + 1}
		if c.class == "" {
			want = map[string]float64{}
		}
		same(t, fmt.Sprint(c.err), want, changes(t, reg, func() { m.DBError(c.err) }))
	}
}

func TestAReloadThatFailsKeepsTheTimeOfTheLastGoodOne(t *testing.T) {
	t.Parallel()
	m, reg, c := newMetrics()
	const ok, at = "config_last_reload_successful", "config_last_reload_success_timestamp_seconds"
	same(t, "at the start", map[string]float64{ok: 1, at: seconds(noon)}, changes(t, reg, func() { m.Reloaded(nil) }))
	c.advance(time.Hour)
	same(t, "a bad one", map[string]float64{ok: 0}, changes(t, reg, func() { m.Reloaded(errNobody) }))
	same(t, "a good one", map[string]float64{ok: 1, at: seconds(noon.Add(time.Hour))}, changes(t, reg, func() { m.Reloaded(nil) }))
}
