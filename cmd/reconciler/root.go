package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/database"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/migrations"
)

// stdio is where a command writes.
type stdio struct{ out, err io.Writer }

// app is what all commands share: the streams, the global flags, and the configuration once it is loaded.
type app struct {
	stdio
	environ []string

	configPath, databaseURL     string
	output, logLevel, logFormat string

	entered bool // a command's own code was reached
	log     *slog.Logger
	metrics *metrics.Metrics // nil where nobody asks for them
}

// run is the whole program, for any arguments, streams and environment.
func run(parent context.Context, args []string, io stdio, environ []string) int {
	ctx, done := untilSignal(parent, os.Exit)
	defer done()
	out := &sink{w: io.out}
	io.out = out
	a := &app{stdio: io, environ: environ}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(io.out)
	root.SetErr(io.err)
	err := root.ExecuteContext(ctx)
	var exit *exitError
	if out.err != nil && (err == nil || errors.As(err, &exit) && exit.err == nil) {
		err = &exitError{code: exitFailed, err: fmt.Errorf("writing to stdout: %w", out.err)}
	}
	code := exitCode(ctx, err, a.entered)
	if err != nil && (!errors.As(err, &exit) || exit.err != nil) {
		fmt.Fprintf(io.err, "reconciler: %v\n", err)
		if !a.entered && out.err == nil {
			fmt.Fprintln(io.err, "Try 'reconciler --help'.")
		}
	}
	return code
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "reconciler",
		Short: "Settle calls whose outcome is unknown, from the receipts of their downstreams",
		Long: `A call timed out: whether it was executed is unknown, and sending it again under a new id may execute it twice.
Callers park such calls in a table. reconciler asks each downstream for its receipts and gives every call one verdict:
SUCCESS, FAILED, or retry with the original callId; what rules cannot decide goes to a person.`,
		Example: `  reconciler demo                      see it work on a private PostgreSQL, in under a minute
  reconciler migrate up                make the tables
  reconciler run                       look at every due call once
  reconciler archive                   archive partitions that are old and whose business is over
  reconciler serve                     do both on a schedule, as a daemon
  reconciler calls show ORD-0001       what is known about one call, and why`,
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.enter(cmd) },
		Args:              cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return &exitError{code: exitUsage}
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.configPath, "config", "", "configuration `FILE` (default $RECONCILER_CONFIG, then ./reconciler.yaml)")
	flags.StringVar(&a.databaseURL, "database-url", "", "PostgreSQL `URL`; better in a file or in $RECONCILER_DATABASE_URL, since others can read a command line")
	flags.StringVarP(&a.output, "output", "o", "table", "`FORMAT` of stdout: table, json or jsonl")
	flags.StringVar(&a.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&a.logFormat, "log-format", "text", "text or json")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "jsonl"}, cobra.ShellCompDirectiveNoFileComp))
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.AddCommand(a.serveCommand(), a.healthcheckCommand(), a.runCommand(), a.archiveCommand(), a.migrateCommand(), a.callsCommand(), a.partitionsCommand(), a.configCommand(), a.demoCommand(), a.versionCommand())
	return root
}

// group is a command that only holds others: called alone or with an unknown word it says so, and exits 2.
func group(use, short string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath()))
			}
			_ = cmd.Help()
			return &exitError{code: exitUsage}
		},
	}
	c.AddCommand(children...)
	return c
}

// enter checks the global flags before any command runs.
func (a *app) enter(*cobra.Command) error {
	if !slices.Contains([]string{"table", "json", "jsonl"}, a.output) {
		return usage(fmt.Errorf("--output is %q and must be table, json or jsonl", a.output))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return usage(fmt.Errorf("--log-level is %q and must be debug, info, warn or error", a.logLevel))
	}
	opts := &slog.HandlerOptions{Level: level}
	switch a.logFormat {
	case "text":
		a.log = slog.New(slog.NewTextHandler(a.err, opts))
	case "json":
		a.log = slog.New(slog.NewJSONHandler(a.err, opts))
	default:
		return usage(fmt.Errorf("--log-format is %q and must be text or json", a.logFormat))
	}
	a.entered = true
	return nil
}

// load reads the configuration.
func (a *app) load() (*config.Config, error) {
	return config.Load(config.Options{
		Path: a.configPath, Environ: a.environ,
		Override: func(c *config.Config) {
			if a.databaseURL != "" {
				c.Database = config.Database{URL: config.URL(a.databaseURL)}
			}
		},
	})
}

// open connects to the database of the configuration.
func (a *app) open(ctx context.Context, c *config.Config) (*sqlx.DB, error) {
	return connect(ctx, c, database.Open)
}

// openForMigrations is open for statements that take as long as they want.
func (a *app) openForMigrations(ctx context.Context, c *config.Config) (*sqlx.DB, error) {
	return connect(ctx, c, database.OpenForMigrations)
}

func connect(ctx context.Context, c *config.Config, open func(dsn string) (*sqlx.DB, error)) (*sqlx.DB, error) {
	if err := c.RequireDatabase(); err != nil {
		return nil, usage(err)
	}
	dsn, err := c.Database.DSN()
	if err != nil {
		return nil, usage(err)
	}
	db, err := open(dsn)
	if err != nil {
		return nil, usage(err)
	}
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("connecting to the database %s: %w", c.Database.URL, err)
	}
	return db, nil
}

// onDatabase runs do on the database of the configuration, opened by a.open or, with the schema checked, by a.ready.
func (a *app) onDatabase(ctx context.Context, open func(context.Context, *config.Config) (*sqlx.DB, error), do func(*sqlx.DB) error) error {
	c, err := a.load()
	if err != nil {
		return err
	}
	db, err := open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	return do(db)
}

// ready opens the database and refuses a schema that lacks something this binary needs.
func (a *app) ready(ctx context.Context, c *config.Config) (*sqlx.DB, error) {
	db, err := a.open(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := schemaIsReady(ctx, db); err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

// schemaIsReady reports what the schema lacks that this binary needs.
func schemaIsReady(ctx context.Context, db *sqlx.DB) error {
	missing, err := migrations.Reconciler.Pending(ctx, db.DB)
	if err != nil || len(missing) == 0 {
		return err
	}
	names := make([]string, len(missing))
	for i, m := range missing {
		names[i] = m.Name
	}
	return usage(fmt.Errorf("the database schema is behind this binary (missing: %s); run 'reconciler migrate up'", strings.Join(names, ", ")))
}
