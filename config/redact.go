package config

import (
	"fmt"
	"log/slog"
	"net/url"
	"strings"

	"github.com/goccy/go-yaml"
)

const hidden = "redacted"

// URL is an address that may carry a password. Whatever prints it (fmt, slog,
// JSON, YAML) sees it without; string(u) is the real one.
type URL string

// String is the URL with passwords and query values that look like secrets replaced.
func (u URL) String() string { return redact(string(u)) }

// GoString keeps %#v from showing what String hides.
func (u URL) GoString() string { return fmt.Sprintf("config.URL(%q)", u.String()) }

// MarshalText makes JSON and YAML show what String shows.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// LogValue makes slog show what String shows.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// Redacted is the effective configuration as YAML, without secrets. Where there
// were none it can be loaded again. JSON of a *Config hides the same.
func (c *Config) Redacted() (string, error) {
	text, err := yaml.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("writing the configuration as YAML: %w", err)
	}
	return string(text), nil
}

// secretWords mark the names of parameters whose values are not shown.
var secretWords = []string{"pass", "pwd", "secret", "token", "key", "sig", "auth", "cred"}

func isSecretName(name string) bool {
	name = strings.ToLower(name)
	for _, word := range secretWords {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// redact leaves what holds no secret exactly as it is.
func redact(raw string) string {
	if raw == "" {
		return ""
	}
	if strings.Contains(raw, "://") {
		return redactURL(raw)
	}
	params, err := parseKeyValues(raw)
	if err != nil {
		return hidden
	}
	changed := false
	for i := range params {
		if isSecretName(params[i].key) {
			params[i].value, changed = hidden, true
		}
	}
	if !changed {
		return raw
	}
	return params.String()
}

// redactURL keeps the user of a database and drops that of a web address, which is often a token.
func redactURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || misplacedPassword(u) {
		return hidden
	}
	changed := false
	if _, ok := u.User.Password(); ok && isPostgres(raw) {
		u.User, changed = url.UserPassword(u.User.Username(), hidden), true
	} else if u.User != nil && !isPostgres(raw) {
		u.User, changed = url.User(hidden), true
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return hidden
	}
	for name := range query {
		if isSecretName(name) {
			query.Set(name, hidden)
			u.RawQuery, changed = query.Encode(), true
		}
	}
	if !changed {
		return raw
	}
	return u.String()
}

// misplacedPassword recognises a password with an unescaped slash, question mark
// or hash sign: what should be the host then stands behind it, with the @.
func misplacedPassword(u *url.URL) bool {
	return u.User == nil && strings.Contains(u.Opaque+u.Path+u.RawQuery+u.Fragment, "@")
}
