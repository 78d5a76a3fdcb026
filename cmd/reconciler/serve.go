package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/internal/daemon"
	"github.com/callreceipt/reconciler/metrics"
)

// errDrained says that the daemon was told to stop and has finished what it had in hand: exit code 0, whatever the signal.
var errDrained = &exitError{code: exitDone}

var errStopping = errors.New("the daemon is stopping")

func (a *app) serveCommand() *cobra.Command {
	var pprof bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run as a daemon: every tool and table on its schedule, watched through /metrics",
		Long: `Serve looks at the due calls of each tool on its schedule, delivers verdicts as they are given, and cleans old ones away. It makes
and archives the partitions of each table on its schedule. Any number of replicas may run on one database; leases spread the work.

SIGTERM or SIGINT: no new work begins, the batches in hand are finished, and the exit code is 0; a second one ends it at once.
SIGHUP, or POST /-/reload, reads the configuration again: all of it comes into force, or none.`,
		Example: `  reconciler serve
  reconciler serve --config /etc/reconciler/reconciler.yaml --log-format json
  curl -s http://127.0.0.1:9464/readyz?verbose
  curl -X POST http://127.0.0.1:9464/-/reload`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context(), pprof) },
	}
	cmd.Flags().BoolVar(&pprof, "pprof", false, "serve profiles under /debug/pprof/")
	return cmd
}

// supervisor is the process around the configuration in force: its metrics, its endpoint, and the generation at work.
type supervisor struct {
	*app
	ctx    context.Context // ends with the first signal
	server config.Server   // what the endpoint was started with

	turns sync.Map // a place for the run of each job, in whatever generation

	reloading sync.Mutex // one reload at a time; guards the announcing and forgetting of tools in metrics as well
	stopping  bool       // guarded by reloading: none begins any more

	mu      sync.Mutex
	current *generation
	all     sync.WaitGroup // generations that have something in hand
}

func (a *app) serve(ctx context.Context, pprof bool) error {
	hup, stopHup := onHangup() // first of all, since a SIGHUP that nobody waits for ends the process
	defer stopHup()
	c, err := a.load()
	if err != nil {
		return err
	}
	registry := a.measured()
	d := &supervisor{app: a, ctx: ctx, server: c.Server}
	first, err := d.generation(c)
	if err != nil {
		return usage(err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Server.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("listening on server.listen: %w", err), first.close())
	}
	a.log.Info("started", "version", buildInfo().Version, "listen", listener.Addr().String(), "config", c.Source.String(), "tools", len(c.Tools), "tables", len(c.Partitions))
	d.metrics.Reloaded(nil)
	d.install(first)

	// The endpoint outlives the work: what drains is still watched.
	served, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	endpoint := make(chan error, 1)
	go func() { endpoint <- metrics.Serve(served, listener, d.handler(registry, pprof), a.log) }()
	for {
		select {
		case <-hup:
			_ = d.reload() // it is logged, and what was in force stays in force
			continue
		case err = <-endpoint:
		case <-ctx.Done():
		}
		break
	}
	return errors.Join(d.drain(err), d.finishServing(stopServing, endpoint, err))
}

// drainLimit is a little longer than the scheduler waits for runs, and shorter than anybody who stops the daemon waits for it.
const drainLimit = daemon.DefaultDrain + 5*time.Second

// drain lets the work in hand come to its end. failure is why the daemon stops, or nil after a signal. A server that hangs keeps
// the driver waiting whatever the contexts say, so there is an end to the patience: what is in hand then is looked at again.
func (d *supervisor) drain(failure error) error {
	cause := cmp.Or(failure, context.Cause(d.ctx))
	d.log.Info("stopping, the work in hand is finished", "cause", cause)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		d.stopReloading()
		d.inForce().stop(cause)
		d.all.Wait()
	}()
	limit := time.NewTimer(drainLimit)
	defer limit.Stop()
	select {
	case <-drained:
		d.log.Info("stopped")
	case <-limit.C:
		d.log.Warn("stopped while something still waits for the database; what it had in hand is looked at again", "waited", drainLimit.String())
	}
	if failure != nil {
		return failure
	}
	return errDrained
}

func (d *supervisor) finishServing(stop func(), endpoint <-chan error, failure error) error {
	stop()
	if failure != nil {
		return nil // it has ended, and why is known
	}
	return <-endpoint
}

// inForce is the generation that was installed last.
func (d *supervisor) inForce() *generation {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current
}

func (d *supervisor) handler(registry *prometheus.Registry, pprof bool) http.Handler {
	return metrics.Handler(metrics.HandlerConfig{
		Gatherer: registry, Pprof: pprof, Reload: d.reload, ReloadTokenFile: d.server.ReloadTokenFile, Log: d.log, Now: time.Now,
		Checks: []metrics.Check{
			{Name: "accepting", Ready: func(context.Context) error {
				if d.ctx.Err() != nil {
					return errStopping
				}
				return nil
			}},
			{Name: "database", Ready: func(ctx context.Context) error { return checkDatabase(ctx, d.inForce().db) }},
		},
	})
}

// onHangup is told of each SIGHUP.
func onHangup() (hup <-chan os.Signal, stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// checkDatabase reports why the database cannot be worked on now.
func checkDatabase(ctx context.Context, db *sqlx.DB) error {
	var standby, readOnly bool
	err := db.QueryRowxContext(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::boolean`).Scan(&standby, &readOnly)
	switch {
	case err != nil:
		return err
	case standby || readOnly:
		return errors.New("it is read-only")
	}
	return schemaIsReady(ctx, db)
}
