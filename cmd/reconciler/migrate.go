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
	whose := owner{word: "reconciler", set: migrations.Reconciler}
	up := &cobra.Command{
		Use:   "up",
		Short: "Make or upgrade the tables; safe to run at any time and by several at once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onDatabase(cmd.Context(), a.openForMigrations, func(db *sqlx.DB) error {
				done, err := whose.set.Up(cmd.Context(), db.DB)
				none := "Schema " + whose.set.Schema + " is up to date."
				if err != nil {
					none = "No step was applied."
				}
				return errors.Join(a.printSteps(done, none), err)
			})
		},
	}
	status := &cobra.Command{
		Use:   "status",
		Short: "Show which steps the database has; exits 5 when one is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onDatabase(cmd.Context(), a.open, func(db *sqlx.DB) error {
				steps, err := whose.set.Status(cmd.Context(), db.DB)
				if err != nil {
					return err
				}
				if err := a.printSteps(steps, ""); err != nil {
					return err
				}
				if slices.ContainsFunc(steps, func(s migrations.Step) bool { return !s.Applied }) {
					return &exitError{code: exitProblems, err: fmt.Errorf("schema %s is behind this binary; run '%s'", whose.set.Schema, whose.up())}
				}
				return nil
			})
		},
	}
	c := group("migrate", "Make, upgrade and check the tables", up, status)
	c.PersistentFlags().Var(&whose, "for", "the tables of `WHO`: reconciler, or downstream, a service that executes calls and has them in its own database")
	_ = c.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"reconciler", "downstream"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// owner is the value of --for: who works with the tables.
type owner struct {
	word string
	set  migrations.Set
}

func (o *owner) String() string { return o.word }
func (o *owner) Type() string   { return "word" }

// Set takes one of the two words.
func (o *owner) Set(word string) error {
	switch word {
	case "reconciler":
		*o = owner{word, migrations.Reconciler}
	case "downstream":
		*o = owner{word, migrations.Downstream}
	default:
		return errors.New("must be reconciler or downstream")
	}
	return nil
}

// up is the command that makes the tables.
func (o *owner) up() string {
	if o.set == migrations.Reconciler {
		return "reconciler migrate up"
	}
	return "reconciler migrate up --for " + o.word
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
