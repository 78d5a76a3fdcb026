package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
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
		if e.textfile != "" {
			if err := metrics.WriteTextfile(e.textfile, registry); err != nil {
				a.log.Warn("metrics were not written", "error", err)
			}
		}
		if e.pushgateway != "" {
			if err := metrics.Push(ctx, e.pushgateway, registry); err != nil {
				a.log.Warn("metrics were not pushed", "error", err)
			}
		}
	}
}
