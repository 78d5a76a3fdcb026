package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/migrations"
)

func (a *app) migrateCommand() *cobra.Command {
	up := &cobra.Command{
		Use:   "up",
		Short: "Make or upgrade the tables; safe to run at any time and by several at once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onDatabase(cmd.Context(), a.open, func(db *sqlx.DB) error {
				done, err := migrations.Reconciler.Up(cmd.Context(), db.DB)
				return errors.Join(a.printSteps(done, "The schema is up to date."), err)
			})
		},
	}
	status := &cobra.Command{
		Use:   "status",
		Short: "Show which steps the database has; exits 5 when one is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onDatabase(cmd.Context(), a.open, func(db *sqlx.DB) error {
				steps, err := migrations.Reconciler.Status(cmd.Context(), db.DB)
				if err != nil {
					return err
				}
				if err := a.printSteps(steps, ""); err != nil {
					return err
				}
				if slices.ContainsFunc(steps, func(s migrations.Step) bool { return !s.Applied }) {
					return &exitError{code: exitProblems, err: errors.New("the schema is behind this binary; run 'reconciler migrate up'")}
				}
				return nil
			})
		},
	}
	return group("migrate", "Make, upgrade and check the tables", up, status)
}

func (a *app) printSteps(steps []migrations.Step, none string) error {
	if a.output != "table" {
		return printList(a, steps)
	}
	if len(steps) == 0 {
		fmt.Fprintln(a.out, none)
		return nil
	}
	now := time.Now()
	t := table{head: []string{"VERSION", "NAME", "STATE"}}
	for _, s := range steps {
		state := cell{text: "missing", colour: yellow}
		switch {
		case s.Applied && s.AppliedAt.IsZero():
			state = cell{text: "applied", colour: green}
		case s.Applied:
			state = cell{text: "applied " + ago(s.AppliedAt, now), colour: green}
		}
		t.add(number(int(s.Version)), words(s.Name), state)
	}
	t.print(a.out)
	return nil
}
