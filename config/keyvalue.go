package config

import (
	"errors"
	"strings"
	"unicode"
)

// parameter is one key=value of a connection string.
type parameter struct{ key, value string }

// parameters is a connection string in key=value form, in order.
type parameters []parameter

// parseKeyValues splits a connection string by the rules of libpq, which lib/pq
// follows: spaces separate, single quotes enclose, a backslash takes the next
// character as it is. Its errors show nothing of the string.
func parseKeyValues(s string) (parameters, error) {
	var all parameters
	rest := []rune(s)
	skip := func() {
		for len(rest) > 0 && unicode.IsSpace(rest[0]) {
			rest = rest[1:]
		}
	}
	for skip(); len(rest) > 0; skip() {
		end := 0
		for end < len(rest) && rest[end] != '=' && !unicode.IsSpace(rest[end]) {
			end++
		}
		key := string(rest[:end])
		rest = rest[end:]
		skip()
		if key == "" || len(rest) == 0 || rest[0] != '=' {
			return nil, errors.New("a key without =")
		}
		rest = rest[1:]
		skip()
		value, n, err := parseValue(rest)
		if err != nil {
			return nil, err
		}
		all, rest = append(all, parameter{key, value}), rest[n:]
	}
	return all, nil
}

// parseValue reads the value at the start of s and tells how many runes it took.
func parseValue(s []rune) (value string, n int, err error) {
	quoted := len(s) > 0 && s[0] == '\''
	if quoted {
		n++
	}
	var b strings.Builder
	for ; n < len(s); n++ {
		switch c := s[n]; {
		case quoted && c == '\'':
			return b.String(), n + 1, nil
		case !quoted && unicode.IsSpace(c):
			return b.String(), n, nil
		case c == '\\':
			if n++; n == len(s) {
				return "", 0, errors.New("a backslash at the end")
			}
			b.WriteRune(s[n])
		default:
			b.WriteRune(c)
		}
	}
	if quoted {
		return "", 0, errors.New("a quote that is not closed")
	}
	return b.String(), n, nil
}

// get is the value that counts, which is the last one.
func (p parameters) get(key string) (value string, ok bool) {
	for _, one := range p {
		if one.key == key {
			value, ok = one.value, true
		}
	}
	return value, ok
}

// String writes the parameters so that they can be parsed again.
func (p parameters) String() string {
	escape := strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	parts := make([]string, len(p))
	for i, one := range p {
		value := escape.Replace(one.value)
		if value == "" || strings.ContainsFunc(value, unicode.IsSpace) {
			value = "'" + value + "'"
		}
		parts[i] = one.key + "=" + value
	}
	return strings.Join(parts, " ")
}
