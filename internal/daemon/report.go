package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const runFailed = "run failed; the next tick tries again"

// say writes a line about the job.
func (e *entry) say(level slog.Level, msg string, args ...any) {
	e.log.Log(context.Background(), level, msg, args...)
}

// tell writes a line about a failure. What is no news is only for those who look for everything.
func (e *entry) tell(news bool, level slog.Level, msg string, s spell, args ...any) {
	if !news {
		level = slog.LevelDebug
	}
	e.say(level, msg, append(args, "failures", s.failures, "since", timestamp(s.since))...)
}

// databaseFailed reports a failure that all jobs share.
func (e *entry) databaseFailed(err error) {
	s, news := e.database.failed(e, "database", e.now())
	e.tell(news, slog.LevelWarn, "the database is unreachable; every job that needs it is tried again until it is back", s, "error", err)
}

// databaseWorks reports that the database answered.
func (e *entry) databaseWorks() {
	if s, over := e.database.worked(e); over {
		e.recovery("the database works again", s)
	}
}

// interrupted reports a run that lost its lease: the database was away for too long, or somebody else has it now.
func (e *entry) interrupted(err error) {
	s, news := e.own.failed(e, kind(err.Error()), e.now())
	e.tell(news, slog.LevelWarn, "run interrupted; it is tried again in a moment", s, "error", err)
}

// failed reports a failure of this job alone. The database was there for it.
func (e *entry) failed(level slog.Level, msg string, err error) {
	e.databaseWorks()
	s, news := e.own.failed(e, kind(err.Error()), e.now())
	e.tell(news, level, msg, s, "error", err, "next", e.next())
}

// worked reports a run that did not fail.
func (e *entry) worked() {
	e.databaseWorks()
	if s, over := e.own.worked(e); over {
		e.recovery("works again", s)
	}
}

// recovery tells of the end of trouble, if the log told of its begin.
func (e *entry) recovery(what string, s spell) {
	level := slog.LevelDebug
	if s.told {
		level = slog.LevelInfo
	}
	failures := "1 failure"
	if s.failures > 1 {
		failures = fmt.Sprintf("%d failures", s.failures)
	}
	e.say(level, fmt.Sprintf("%s after %s in %s", what, failures, e.now().Sub(s.since).Round(time.Second)))
}

// recovered is the inner wrapper of a job: a panic ends the run and nothing else. For Watch the run has ended by then.
func (e *entry) recovered(next cron.Job) cron.Job {
	return cron.FuncJob(func() {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			e.Watch.Panicked()
			s, news := e.own.failed(e, kind(fmt.Sprint("panic: ", cause)), e.now())
			e.tell(news, slog.LevelError, "panic; the next tick tries again", s, "panic", cause, "next", e.next(), "stack", string(debug.Stack()))
		}()
		next.Run()
	})
}

func (e *entry) next() string { return timestamp(e.Schedule.Next(e.now())) }

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// kind is the text of an error without the numbers in it, which differ from one failure to the next of the same kind.
func kind(text string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, text)
}
