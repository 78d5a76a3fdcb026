package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"
)

const prefix = "RECONCILER_"

// settings are the values that the environment and flags can set above the file.
type settings struct {
	DatabaseURL     string `env:"RECONCILER_DATABASE_URL"`
	DatabaseURLFile string `env:"RECONCILER_DATABASE_URL_FILE"`
	ServerListen    string `env:"RECONCILER_SERVER_LISTEN"`
	Schedule        string `env:"RECONCILER_RECONCILE_SCHEDULE"`
	Timezone        string `env:"RECONCILER_RECONCILE_TIMEZONE"`
}

// setting ties a variable to the key that it sets.
type setting struct {
	variable string
	key      path
	value    string
	set      func(*Config, string)
}

func (s settings) list() []setting {
	return []setting{
		{prefix + "DATABASE_URL", path{"database", "url"}, s.DatabaseURL, func(c *Config, v string) { c.Database.URL = URL(v) }},
		{prefix + "DATABASE_URL_FILE", path{"database", "url_file"}, s.DatabaseURLFile, func(c *Config, v string) { c.Database.URLFile = v }},
		{prefix + "SERVER_LISTEN", path{"server", "listen"}, s.ServerListen, func(c *Config, v string) { c.Server.Listen = v }},
		{prefix + "RECONCILE_SCHEDULE", path{"reconcile", "schedule"}, s.Schedule, func(c *Config, v string) { c.Reconcile.Schedule = v }},
		{prefix + "RECONCILE_TIMEZONE", path{"reconcile", "timezone"}, s.Timezone, func(c *Config, v string) { c.Reconcile.Timezone = v }},
	}
}

func settingsOf(c *Config) settings {
	return settings{string(c.Database.URL), c.Database.URLFile, c.Server.Listen, c.Reconcile.Schedule, c.Reconcile.Timezone}
}

// otherVariables are read elsewhere and are no configuration.
var otherVariables = []string{
	prefix + "CONFIG",
	prefix + "PG_BIN",
	prefix + "PG_REPOSITORY",
	prefix + "TEST_DATABASE_URL",
}

// injected matches what Kubernetes puts into every container for a Service
// called reconciler or reconciler-something in its namespace.
var injected = regexp.MustCompile(`^RECONCILER(_PORT|(_\w+)?(_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT_\d+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?))$`)

// injectedAddress is the one form whose name alone does not tell: RECONCILER_DB_PORT=tcp://10.0.0.7:5432.
func injectedAddress(name, value string) bool {
	return strings.HasSuffix(name, "_PORT") &&
		(strings.HasPrefix(value, "tcp://") || strings.HasPrefix(value, "udp://") || strings.HasPrefix(value, "sctp://"))
}

// variablesOf picks the variables that begin with RECONCILER_.
func variablesOf(environ []string) map[string]string {
	variables := map[string]string{}
	for _, line := range environ {
		if name, value, ok := strings.Cut(line, "="); ok && strings.HasPrefix(name, prefix) {
			variables[name] = value
		}
	}
	return variables
}

// applyEnvironment puts the environment over the file. A variable that is set
// but empty counts as not set, because templates leave such variables behind.
func applyEnvironment(c *Config, variables map[string]string, r *report) {
	s, err := env.ParseAsWithOptions[settings](env.Options{Environment: variables})
	if err != nil {
		r.add(nil, position{file: inEnvironment}, "%s", err)
		return
	}
	known := slices.Clone(otherVariables)
	for _, one := range s.list() {
		known = append(known, one.variable)
		if one.value == "" {
			continue
		}
		pos := position{file: inEnvironment, key: one.variable}
		if strings.ContainsFunc(one.value, isControl) {
			r.misread(one.key, pos, "contains a control character or a line break; remove it")
			continue
		}
		one.set(c, one.value)
		r.where[one.key.id()] = pos
		delete(r.broken, one.key.id())
		c.Source.Variables = append(c.Source.Variables, one.variable)
	}
	slices.Sort(c.Source.Variables)
	slices.Sort(known)
	c.Database.yield(r, s.DatabaseURL != "", s.DatabaseURLFile != "")
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if slices.Contains(known, name) || injected.MatchString(name) || injectedAddress(name, variables[name]) {
			continue
		}
		best, _ := nearest(name, known)
		r.add(nil, position{file: inEnvironment, key: printable(name)}, "unknown variable; the nearest known one is %s; unset it or correct its name", best)
	}
}

// applyOverride lets flags change the configuration and remembers which settings they changed.
func applyOverride(c *Config, override func(*Config), r *report) {
	before := settingsOf(c).list()
	override(c)
	changed := map[string]bool{}
	for i, one := range settingsOf(c).list() {
		if one.value != before[i].value {
			changed[one.key.id()] = true
			r.where[one.key.id()] = position{file: inFlags, key: one.key.String()}
			delete(r.broken, one.key.id())
		}
	}
	c.Database.yield(r, changed[path{"database", "url"}.id()], changed[path{"database", "url_file"}.id()])
}

// yield drops the form of the URL that a higher level did not set. A level that set both is refused.
func (d *Database) yield(r *report, url, urlFile bool) {
	switch {
	case url && urlFile:
		d.refuseBoth(path{"database"}, r)
	case url && !urlFile:
		d.URLFile = ""
	case urlFile && !url:
		d.URL = ""
	}
}
