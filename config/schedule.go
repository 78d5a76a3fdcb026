package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// shortestInterval is the least time between two runs that a schedule may ask for.
const shortestInterval = 5 * time.Second

// Schedule says when a task runs. It is a cron.Schedule that carries its own
// time zone. The zero value never fires.
type Schedule struct {
	spec string
	loc  *time.Location
	next cron.Schedule
}

// ParseSchedule reads five cron fields, a name like @hourly, or @every with a
// duration of at least 5s. It refuses what would never fire, and time zones
// inside the schedule, which make the parser panic when nothing follows them.
//
// Without a zone (nil) it is read in UTC.
func ParseSchedule(spec string, loc *time.Location) (Schedule, error) {
	if loc == nil {
		loc = time.UTC
	}
	trimmed := strings.TrimSpace(spec)
	if trimmed == "" {
		return Schedule{}, errors.New(`the schedule is empty; write five fields such as "*/5 * * * *", or "@every 30s"`)
	}
	if zoned := strings.ToUpper(trimmed); strings.HasPrefix(zoned, "TZ=") || strings.HasPrefix(zoned, "CRON_TZ=") {
		return Schedule{}, fmt.Errorf("schedule %q carries a time zone; use reconcile.timezone", spec)
	}
	for field := range strings.FieldsSeq(trimmed) {
		if strings.Trim(field, ",") == "" {
			return Schedule{}, fmt.Errorf("schedule %q has an empty field", spec)
		}
	}
	if every, ok := strings.CutPrefix(trimmed, "@every "); ok {
		if d, err := time.ParseDuration(every); err == nil && d < shortestInterval {
			return Schedule{}, fmt.Errorf("schedule %q runs every %s; the shortest interval is %s", spec, d, shortestInterval)
		}
	}
	parsed, err := parseCron(trimmed)
	if err != nil {
		return Schedule{}, fmt.Errorf(`schedule %q is not valid: %w; write five fields such as "*/5 * * * *", or "@every 30s"`, spec, err)
	}
	s := Schedule{spec: trimmed, loc: loc, next: parsed}
	// A leap year, so that 29 February is found; the answer must not depend on today.
	if s.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, fmt.Errorf("schedule %q never fires; no such day exists", spec)
	}
	return s, nil
}

// parseCron turns a panic of the parser into an error.
func parseCron(spec string) (s cron.Schedule, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it cannot be read (%v)", p)
		}
	}()
	return cron.ParseStandard(spec)
}

// Next is the first instant after t at which the task runs, in the schedule's
// zone; the zero time if there is none.
func (s Schedule) Next(t time.Time) time.Time {
	// A schedule without a zone of its own is read in that of the instant.
	if s.next == nil {
		return time.Time{}
	}
	return s.next.Next(t.In(s.loc))
}

// String is the schedule as it was written.
func (s Schedule) String() string { return s.spec }

// Task is a kind of work that runs on a schedule.
type Task string

// The tasks that run on a schedule.
const (
	TaskReconcile Task = "reconcile"
	TaskArchive   Task = "archive"
)

// Entry is one line of the timetable.
type Entry struct {
	Task Task
	// Subject is the name of a tool, or of a table; see [Partition.Subject].
	Subject string
	// Spec is the schedule as it was written.
	Spec     string
	Schedule Schedule
}

// Schedules is the timetable: the tools by name, then the tables as written.
// What cannot be parsed is left out, which after [Load] is nothing.
func (c *Config) Schedules() []Entry {
	var entries []Entry
	add := func(task Task, subject, spec string) {
		if s, err := ParseSchedule(spec, c.Location()); err == nil {
			entries = append(entries, Entry{task, subject, s.String(), s})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tools)) {
		spec := c.Tools[name].Schedule
		if spec == "" {
			spec = c.Reconcile.Schedule
		}
		add(TaskReconcile, name, spec)
	}
	for _, p := range c.Partitions {
		add(TaskArchive, p.Subject(), p.Schedule)
	}
	return entries
}

// Subject names the table among those of all databases: schema.name, with @ and [Database.Name] if it has a database of its own.
func (p Partition) Subject() string {
	if !p.Database.Configured() {
		return p.Table
	}
	return p.Table + "@" + p.Database.Name()
}
