package main

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/callreceipt/reconciler/config"
	"github.com/callreceipt/reconciler/metrics"
)

// errReloaded is why a pass ends that began under the configuration before.
var errReloaded = errors.New("the configuration was reloaded")

// reload reads the configuration again and puts it to work. With an error the one in force stays in force.
func (d *supervisor) reload() error {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	if d.stopping {
		return errStopping
	}
	next, err := d.readAgain()
	d.metrics.Reloaded(err)
	if err != nil {
		d.log.Error("the configuration was not reloaded; the one in force stays in force", "error", err)
		return err
	}
	if next.cfg.Server != d.server {
		d.log.Warn("a change of the section server takes effect after a restart",
			"in_force", server(d.server), "configured", server(next.cfg.Server))
	}
	d.install(next)
	d.log.Info("configuration reloaded", "config", next.cfg.Source.String(), "tools", len(next.cfg.Tools), "tables", len(next.cfg.Partitions))
	return nil
}

func (d *supervisor) readAgain() (*generation, error) {
	c, err := d.load()
	if err != nil {
		return nil, err
	}
	return d.generation(c)
}

func server(s config.Server) slog.Value {
	return slog.GroupValue(slog.String("listen", s.Listen), slog.String("reload_token_file", s.ReloadTokenFile))
}

// stopReloading waits for a reload under way, and lets none begin any more.
func (d *supervisor) stopReloading() {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	d.stopping = true
}

// install puts a generation to work and lets the one before it finish.
func (d *supervisor) install(next *generation) {
	d.mu.Lock()
	previous := d.current
	d.current = next
	d.mu.Unlock()
	d.metrics.WatchDB(next.db.DB)
	d.all.Go(next.work)
	if previous == nil {
		return
	}
	d.all.Go(func() {
		previous.stop(errReloaded)
		d.forget(previous.cfg)
	})
}

// forget removes the metrics of the tools and tables that are not configured any more. It is not done in the middle of a reload: the next
// configuration may bring a tool back, and would go on with metrics that are about to be removed.
func (d *supervisor) forget(previous *config.Config) {
	d.reloading.Lock()
	defer d.reloading.Unlock()
	configured := d.inForce().cfg
	for _, p := range previous.Partitions {
		subject := p.Subject()
		if !slices.ContainsFunc(configured.Partitions, func(kept config.Partition) bool { return kept.Subject() == subject }) {
			d.metrics.ForgetArchive(subject)
			d.metrics.ForgetRun(metrics.TaskArchive, subject)
		}
	}
	for name := range previous.Tools {
		switch t, kept := configured.Tools[name]; {
		case !kept:
			d.metrics.Forget(name)
		case t.Notify.URL == "":
			d.metrics.ForgetRun(metrics.TaskNotify, name)
		}
	}
}
