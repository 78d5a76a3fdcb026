package config

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lib/pq"

	"github.com/callreceipt/reconciler/internal/secretfile"
)

// Configured tells whether a database is named at all.
func (d Database) Configured() bool { return d.URL != "" || d.URLFile != "" }

// source is the URL that counts, from the file if there is one.
func (d Database) source() URL {
	if d.fromFile != nil {
		return *d.fromFile
	}
	return d.URL
}

// refuseBoth reports a URL and a file for it at the same level.
func (d Database) refuseBoth(at path, r *report) {
	if d.URL != "" && d.URLFile != "" {
		r.wrong(at.to("url_file"), nil, "is set together with url; remove one of them")
	}
}

// resolve reads the URL from its file and checks that it is well formed.
func (d *Database) resolve(at path, r *report) {
	at = at.to("url")
	if d.URL == "" && d.URLFile != "" {
		at[len(at)-1] = "url_file"
		secret, err := secretfile.Read(d.URLFile)
		if err != nil {
			r.wrong(at, nil, "%s %s", printable(d.URLFile), err)
			return
		}
		d.fromFile = new(URL(secret))
	}
	if d.source() == "" {
		return
	}
	if _, err := d.DSN(); err != nil {
		r.wrong(at, nil, "%s", err)
	}
}

// DSN is the connection string to open, in the form in which it was written
// (postgres:// or key=value), with what was left out filled in:
//
//   - sslmode=verify-full, or disable when every host is loopback or a socket.
//     The driver's own default encrypts but does not verify.
//   - application_name=reconciler and connect_timeout=10 (seconds).
//   - TimeZone=UTC, DateStyle=ISO, statement_timeout=60s, lock_timeout=5s and
//     idle_in_transaction_session_timeout=60s for every session. A connection
//     pooler in between must let these through.
//
// What the PG* variables or a service file set counts as written. No error
// shows the password.
func (d Database) DSN() (string, error) {
	raw := string(d.source())
	if raw == "" {
		return "", errors.New("no database URL is configured; set url or url_file")
	}
	written, err := parametersOf(raw)
	if err != nil {
		return "", err
	}
	cfg, err := pq.NewConfig(raw)
	if err != nil {
		return "", errors.New("is refused by the driver: " + withoutSecrets(err.Error(), written))
	}
	missing, err := missingParameters(cfg, written)
	if err != nil {
		return "", err
	}
	if !isPostgres(raw) {
		params, err := parseKeyValues(raw)
		return append(params, missing...).String(), err
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", errMalformed
	}
	query := u.Query()
	for _, p := range missing {
		query.Set(p.key, p.value)
	}
	u.RawQuery = query.Encode()
	if u.Host == "" && u.Path == "" {
		u.Path = "/" // or else the slashes are lost, by which the driver tells a URL
	}
	return u.String(), nil
}

var errMalformed = errors.New("is not a well-formed PostgreSQL address; write postgres://user:password@host:5432/name, " +
	"with signs such as / ? # @ % in the password percent-encoded, or host=HOST dbname=NAME user=USER")

func isPostgres(raw string) bool {
	return strings.HasPrefix(raw, "postgres://") || strings.HasPrefix(raw, "postgresql://")
}

// parametersOf lists what is written in an address of either form. Its errors show nothing of it.
func parametersOf(raw string) (parameters, error) {
	if !isPostgres(raw) {
		params, err := parseKeyValues(raw)
		if err != nil || strings.Contains(raw, "://") {
			return nil, errMalformed
		}
		return params, nil
	}
	u, err := url.Parse(raw)
	if err != nil || u.Fragment != "" || misplacedPassword(u) {
		return nil, errMalformed
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errMalformed
	}
	var params parameters
	if password, ok := u.User.Password(); ok {
		params = append(params, parameter{"password", password})
	}
	for key := range query {
		if value := query.Get(key); value != "" {
			params = append(params, parameter{key, value})
		}
	}
	return params, nil
}

// missingParameters lists what [Database.DSN] adds.
func missingParameters(cfg pq.Config, written parameters) (parameters, error) {
	var add parameters
	sslmode, ok := written.get("sslmode")
	if sslmode != string(pq.SSLModeDisable) && mixesSockets(cfg) {
		return nil, errors.New("names a socket before a network host, for which the driver then turns encryption off; " +
			"name one kind only, or write sslmode=disable")
	}
	if !ok {
		switch {
		case cfg.SSLMode != "" && !isSocket(cfg.Host):
			// PGSSLMODE, a service file or sslrootcert=system has set it.
		case isLocal(cfg):
			add = append(add, parameter{"sslmode", string(pq.SSLModeDisable)})
		default:
			add = append(add, parameter{"sslmode", string(pq.SSLModeVerifyFull)})
		}
	}
	if cfg.ApplicationName == "" {
		add = append(add, parameter{"application_name", "reconciler"})
	}
	if _, ok := written.get("connect_timeout"); !ok && cfg.ConnectTimeout == 0 {
		add = append(add, parameter{"connect_timeout", "10"})
	}
	for _, p := range []parameter{
		{"timezone", "UTC"},
		// The driver accepts this value alone and sends it itself.
		{"datestyle", "ISO, MDY"},
		{"statement_timeout", "60s"},
		{"lock_timeout", "5s"},
		{"idle_in_transaction_session_timeout", "60s"},
	} {
		if !setsAtRunTime(cfg, written, p.key) {
			add = append(add, p)
		}
	}
	return add, nil
}

// setsAtRunTime tells whether a run-time parameter is written, by whatever case
// of letters, also inside options=-c name=value, which ours would override.
func setsAtRunTime(cfg pq.Config, written parameters, name string) bool {
	for _, p := range written {
		if strings.EqualFold(p.key, name) {
			return true
		}
	}
	return strings.Contains(strings.ToLower(cfg.Options), name)
}

// hostsOf lists where a connection may go, the first choice first.
func hostsOf(cfg pq.Config) []pq.ConfigMultihost {
	return append([]pq.ConfigMultihost{{Host: cfg.Host, Hostaddr: cfg.Hostaddr}}, cfg.Multi...)
}

// Name is host:port/dbname, by which databases are told apart in metrics, in the journal and in the names of directories. It shows
// neither user nor password, and of several hosts it has all. It is empty when there is no URL that could be opened.
func (d Database) Name() string {
	cfg, err := pq.NewConfig(string(d.source()))
	if err != nil || d.source() == "" {
		return ""
	}
	hosts := []string{hostPort(cfg.Host, cfg.Hostaddr, cfg.Port)}
	for _, m := range cfg.Multi {
		hosts = append(hosts, hostPort(m.Host, m.Hostaddr, m.Port))
	}
	return strings.Join(hosts, ",") + "/" + cmp.Or(cfg.Database, cfg.User)
}

func hostPort(host string, addr netip.Addr, port uint16) string {
	if addr.IsValid() { // it goes there, whatever the host is called
		host = addr.String()
	}
	return net.JoinHostPort(cmp.Or(host, "localhost"), strconv.Itoa(int(cmp.Or(port, 5432))))
}

// isLocal tells whether every host is this machine.
func isLocal(cfg pq.Config) bool {
	return !slices.ContainsFunc(hostsOf(cfg), func(h pq.ConfigMultihost) bool {
		switch {
		case h.Hostaddr.IsValid():
			return !h.Hostaddr.IsLoopback()
		case isSocket(h.Host), h.Host == "", strings.EqualFold(h.Host, "localhost"):
			return false
		default:
			addr, err := netip.ParseAddr(strings.Trim(h.Host, "[]"))
			return err != nil || !addr.IsLoopback()
		}
	})
}

// mixesSockets tells whether the first host is a socket and another is not this
// machine. lib/pq 1.12.3 decides by the first host alone that TLS is not needed.
func mixesSockets(cfg pq.Config) bool {
	return isSocket(cfg.Host) && !cfg.Hostaddr.IsValid() && !isLocal(cfg)
}

func isSocket(host string) bool { return filepath.IsAbs(host) || strings.HasPrefix(host, "@") }

// withoutSecrets removes what must not be shown from a message of the driver, which quotes values.
func withoutSecrets(message string, written parameters) string {
	for _, p := range written {
		if isSecretName(p.key) {
			message = strings.ReplaceAll(message, strconv.Quote(p.value), hidden)
		}
	}
	return message
}
