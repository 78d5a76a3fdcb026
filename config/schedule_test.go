package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/robfig/cron/v3"
)

var _ cron.Schedule = Schedule{}

func TestSchedulesFireInTheirOwnZone(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	from := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, one := range []struct {
		spec string
		loc  *time.Location
		want time.Time
	}{
		{"15 3 * * *", nil, time.Date(2024, 5, 2, 3, 15, 0, 0, time.UTC)},
		{"15 3 * * *", berlin, time.Date(2024, 5, 2, 1, 15, 0, 0, time.UTC)},
		{"@hourly", berlin, from.Add(time.Hour)},
		{" @every 5s ", nil, from.Add(5 * time.Second)},
		{"0 0 29 2 *", nil, time.Date(2028, 2, 29, 0, 0, 0, 0, time.UTC)},
	} {
		s, err := ParseSchedule(one.spec, one.loc)
		if err != nil {
			t.Errorf("%q: %v", one.spec, err)
			continue
		}
		if got := s.Next(from); !got.Equal(one.want) {
			t.Errorf("%q fires at %s, want %s", one.spec, got, one.want)
		}
		if got := s.Next(from.In(berlin)); one.loc == nil && got.Location() != time.UTC {
			t.Errorf("%q answers in %s", one.spec, got.Location())
		}
	}
	if !(Schedule{}).Next(from).IsZero() {
		t.Error("the zero schedule fires")
	}
}

func TestSchedulesThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"":                       "is empty",
		"  ":                     "is empty",
		"0 0 31 2 *":             "never fires",
		"@every 0s":              "runs every 0s; the shortest interval is 5s",
		"@every 4.9s":            "runs every 4.9s; the shortest interval is 5s",
		"@every -1h":             "runs every -1h0m0s; the shortest interval is 5s",
		"@every 30":              "is not valid",
		"@reboot":                "is not valid",
		"* * * *":                "expected exactly 5 fields, found 4",
		"* * * * * *":            "expected exactly 5 fields, found 6",
		"61 * * * *":             "above maximum",
		", * * * *":              "has an empty field",
		"CRON_TZ=UTC":            "use reconcile.timezone",
		"TZ=UTC * * * * *":       "use reconcile.timezone",
		" cron_tz=UTC * * * * *": "use reconcile.timezone",
	} {
		if _, err := ParseSchedule(spec, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", spec, err, want)
		}
	}
}

func TestAPanicOfTheCronParserIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := parseCron("CRON_TZ=UTC"); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("got %v", err)
	}
}

func TestTheTimetableListsToolsByNameAndThenTables(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `reconcile: {schedule: "@hourly", timezone: America/New_York}
tools:
  b: {needs_receipt: false, schedule: "@every 10s"}
  a: {needs_receipt: false}
partitions:
- {table: z.z, archive: {dir: x}}
- {table: y.y, archive: {dir: x}, schedule: "@daily"}
- {table: y.y, archive: {dir: x}, database: {url: "postgres://app:secret@db.internal:6432/orders"}}
`)
	entries := c.Schedules()
	want := []Entry{
		{Task: TaskReconcile, Subject: "a", Spec: "@hourly"},
		{Task: TaskReconcile, Subject: "b", Spec: "@every 10s"},
		{Task: TaskArchive, Subject: "z.z", Spec: "15 3 * * *"},
		{Task: TaskArchive, Subject: "y.y", Spec: "@daily"},
		{Task: TaskArchive, Subject: "y.y@db.internal:6432/orders", Spec: "15 3 * * *"},
	}
	if diff := cmp.Diff(want, entries, cmpopts.IgnoreFields(Entry{}, "Schedule")); diff != "" {
		t.Fatal(diff)
	}
	at := entries[2].Schedule.Next(time.Date(2024, 5, 1, 0, 0, 0, 0, time.UTC))
	if want := time.Date(2024, 5, 1, 7, 15, 0, 0, time.UTC); !at.Equal(want) {
		t.Errorf("archiving starts at %s, want %s", at, want)
	}
}
