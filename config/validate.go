package config

import (
	"net"
	"strconv"
	"time"
)

// validate judges the completed configuration, finds the secret files and reads
// the database URLs among them. Each rule prints the values that disagree.
func (c *Config) validate(r *report) {
	c.Database.resolve(path{"database"}, r)
	c.validateServer(r)
	c.validateReconcile(r)
	for name, t := range c.Tools {
		t.validate(name, r)
		c.validateScheduleOf(path{"tools", name, "schedule"}, t.Schedule, r)
		c.validateTableOf(name, t, r)
	}
	for i := range c.Partitions {
		at := path{"partitions"}.item(i)
		c.Partitions[i].validate(at, r)
		c.validateSchedule(at.to("schedule"), c.Partitions[i].Schedule, r)
		c.validateRetention(i, r)
		c.validateUnique(i, r)
	}
}

func (c *Config) validateServer(r *report) {
	at := path{"server", "listen"}
	_, port, err := net.SplitHostPort(c.Server.Listen)
	if err != nil {
		r.wrong(at, nil, "%q is not host:port; write one like 127.0.0.1:9464 or [::1]:9464", c.Server.Listen)
		return
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		r.wrong(at, nil, "%q has port %q; write a number from 0 to 65535", c.Server.Listen, port)
	}
	checkFile(path{"server", "reload_token_file"}, c.Server.ReloadTokenFile, r)
}

func (c *Config) validateReconcile(r *report) {
	zone := path{"reconcile", "timezone"}
	switch loc, err := time.LoadLocation(c.Reconcile.Timezone); {
	case c.Reconcile.Timezone == "":
		r.wrong(zone, nil, "is empty; write UTC or a name such as Europe/Berlin")
	case c.Reconcile.Timezone == "Local":
		r.wrong(zone, nil, "Local differs from machine to machine; write UTC or a name such as Europe/Berlin")
	case err != nil:
		r.wrong(zone, nil, "%q is not a known time zone; write UTC or a name such as Europe/Berlin", c.Reconcile.Timezone)
	default:
		c.location = loc
	}
	c.validateSchedule(path{"reconcile", "schedule"}, c.Reconcile.Schedule, r)
}

func (c *Config) validateSchedule(at path, spec string, r *report) {
	if _, err := ParseSchedule(spec, c.Location()); err != nil {
		r.wrong(at, nil, "%s", err)
	}
}

// validateScheduleOf is validateSchedule where empty means none of its own.
func (c *Config) validateScheduleOf(at path, spec string, r *report) {
	if spec != "" {
		c.validateSchedule(at, spec, r)
	}
}

// between checks a whole number.
func between(at path, n, least, most int, r *report) {
	if n < least || n > most {
		r.wrong(at, nil, "is %d; it must be from %d to %d", n, least, most)
	}
}

// positive checks a duration that cannot be zero. most is 0 where only the general bound counts.
func positive(at path, d, most Duration, r *report) {
	switch {
	case d <= 0:
		r.wrong(at, nil, "is %s; it must be longer than 0", d)
	case most > 0 && d > most:
		r.wrong(at, nil, "is %s; it must be at most %s", d, most)
	}
}
