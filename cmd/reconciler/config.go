package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/printable"
)

// nextRuns is how many runs of each schedule `config check` shows.
const nextRuns = 5

// check is what `config check` prints; its field names are a contract.
type check struct {
	Source    string           `json:"source"`
	Problems  []config.Problem `json:"problems"`
	Schedules []scheduled      `json:"schedules"`
}

type scheduled struct {
	Task     string      `json:"task"`
	Subject  string      `json:"subject"`
	Schedule string      `json:"schedule"`
	Next     []time.Time `json:"next"`
}

func (a *app) configCommand() *cobra.Command {
	checkCmd := &cobra.Command{
		Use:   "check",
		Short: "Show every problem of the configuration, and when each schedule runs next; exits 5 on problems",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return a.checkConfig() },
	}
	showCmd := &cobra.Command{
		Use:   "show",
		Short: "Show the configuration in effect, defaults filled in and secrets redacted",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := a.load()
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.printJSON(c)
			}
			text, err := c.Redacted()
			if err != nil {
				return err
			}
			fmt.Fprintf(a.out, "# in effect: %s\n%s", c.Source, text)
			return nil
		},
	}
	return group("config", "Check and show the configuration", checkCmd, showCmd)
}

func (a *app) checkConfig() error {
	c, err := a.load()
	out := check{Problems: []config.Problem{}, Schedules: []scheduled{}}
	var problems *config.Problems
	switch {
	case errors.As(err, &problems):
		out.Problems = problems.List
	case err != nil:
		return err
	default:
		out.Source = c.Source.String()
		now := time.Now()
		for _, e := range c.Schedules() {
			s := scheduled{Task: string(e.Task), Subject: e.Subject, Schedule: e.Spec}
			for at, n := now, 0; n < nextRuns; n++ {
				at = e.Schedule.Next(at)
				s.Next = append(s.Next, at)
			}
			out.Schedules = append(out.Schedules, s)
		}
	}
	if a.output != "table" {
		if err := a.printJSON(out); err != nil {
			return err
		}
	} else {
		a.printCheck(out)
	}
	if len(out.Problems) > 0 {
		return &exitError{code: exitProblems}
	}
	return nil
}

func (a *app) printCheck(out check) {
	for _, p := range out.Problems {
		fmt.Fprintln(a.out, p)
	}
	if n := len(out.Problems); n > 0 {
		fmt.Fprintf(a.out, "\n%d %s.\n", n, plural(n, "problem", "problems"))
		return
	}
	fmt.Fprintf(a.out, "The configuration is good: %s\n", out.Source)
	if len(out.Schedules) == 0 {
		return
	}
	fmt.Fprintln(a.out)
	t := table{head: []string{"TASK", "SUBJECT", "SCHEDULE", "NEXT RUNS"}}
	for _, s := range out.Schedules {
		for i, at := range s.Next {
			when := words(at.Format("2006-01-02 15:04:05 MST"))
			if i == 0 {
				t.add(words(s.Task), words(printable.Text(s.Subject)), words(s.Schedule), when)
				continue
			}
			t.add(words(""), words(""), words(""), when)
		}
	}
	t.print(a.out)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
