package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/metrics"
	"github.com/callreceipt/reconciler/reconcile"
)

// measured makes the metrics of this process.
func (a *app) measured() *prometheus.Registry {
	registry, b := metrics.NewRegistry(), buildInfo()
	a.metrics = metrics.New(registry, metrics.Build{Version: b.Version, Commit: b.Revision, GoVersion: b.Go}, time.Now)
	return registry
}

// export is where a one-off run leaves its metrics, since nobody can scrape a process that has ended.
type export struct{ textfile, pushgateway string }

func (e *export) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&e.textfile, "textfile", "", "leave metrics in `PATH` (*.prom) for the textfile collector of node_exporter")
	cmd.Flags().StringVar(&e.pushgateway, "pushgateway", "", "push metrics to the Pushgateway at `URL`; a push that fails is only logged")
}

// check finds out before the work whether the metrics can be left after it.
func (e *export) check() error {
	if u, err := url.Parse(e.pushgateway); e.pushgateway != "" && (err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
		return errors.New("--pushgateway must be an http or https URL, such as http://pushgateway:9091") // it may hold a password
	}
	if e.textfile == "" {
		return nil
	}
	if filepath.Ext(e.textfile) != ".prom" {
		return fmt.Errorf("--textfile %s must end in .prom, or node_exporter does not read it", e.textfile)
	}
	if info, err := os.Stat(e.textfile); err == nil && info.IsDir() {
		return fmt.Errorf("--textfile %s is a directory", e.textfile)
	}
	// The file is written aside and renamed.
	probe, err := os.CreateTemp(filepath.Dir(e.textfile), "."+filepath.Base(e.textfile)+".tmp-*")
	if why, ok := errors.AsType[*fs.PathError](err); ok {
		err = why.Err
	}
	if err != nil {
		return fmt.Errorf("--textfile %s: no file can be made in %s: %w", e.textfile, filepath.Dir(e.textfile), err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// begin measures from now on. What it returns is called when the run is over, however it ended: its work is done and on record, so
// trouble with the metrics is only logged.
func (e *export) begin(a *app, c *config.Config) (end func(context.Context, *sqlx.DB)) {
	if *e == (export{}) {
		return func(context.Context, *sqlx.DB) {}
	}
	registry := a.measured()
	for name, t := range c.Tools { // a push replaces the series of all tools, also of those that are not worked on
		a.metrics.Tool(name, reconcile.MeasuredAs(t.Notify.URL != ""))
		a.metrics.Run(metrics.TaskReconcile, name)
	}
	return func(ctx context.Context, db *sqlx.DB) {
		ctx = context.WithoutCancel(ctx) // also after a signal
		if err := a.gauges(ctx, c, db); err != nil {
			a.metrics.BacklogUnknown()
			a.log.Warn("metrics: the backlog could not be counted", "error", err)
		}
		e.leave(ctx, a, registry)
	}
}

// beginTables is begin for a run over tables. It leaves what is known of all of them, and no series that a run over tools leaves, so
// that the two may have a file each, or the same Pushgateway. Where one table cannot be asked, the metrics of the run before stay:
// time runs towards the end of the partitions that they tell of.
func (e *export) beginTables(a *app) (end func(context.Context, *tables)) {
	if *e == (export{}) {
		return func(context.Context, *tables) {}
	}
	registry := a.measured()
	return func(ctx context.Context, w *tables) {
		ctx = context.WithoutCancel(ctx)
		for _, t := range w.all {
			limited, cancel := context.WithTimeout(ctx, gaugesLimit)
			err := t.Survey(limited)
			cancel()
			if err != nil {
				a.log.Warn("metrics were left as they were: the partitions of a table could not be looked at", "table", t.Subject(), "error", err)
				return
			}
		}
		e.leave(ctx, a, ofTables(registry))
	}
}

// ofTables is the metrics that have a table.
func ofTables(g prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := g.Gather()
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
			return !slices.ContainsFunc(f.GetMetric()[0].GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == "table" })
		}), err
	})
}

func (e *export) leave(ctx context.Context, a *app, g prometheus.Gatherer) {
	if e.textfile != "" {
		if err := metrics.WriteTextfile(e.textfile, g); err != nil {
			a.log.Warn("metrics were not written", "error", err)
		}
	}
	if e.pushgateway != "" {
		if err := metrics.Push(ctx, e.pushgateway, g); err != nil {
			a.log.Warn("metrics were not pushed", "error", err)
		}
	}
}
