package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// longestDuration bounds every duration, so that no sum or product of two of them overflows in use.
const longestDuration = Duration(10 * 365 * 24 * time.Hour)

// Duration is a time.Duration that reads and writes itself as text: 30s, 168h,
// 1h30m, or whole days as 7d.
type Duration time.Duration

// Std is the duration as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String drops the zero units that time.Duration writes: 168h, not 168h0m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText makes the duration a string in JSON and YAML.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// parseDuration reads Go's syntax and whole days. It refuses numbers without a
// unit (except 0), negative durations and more than ten years.
func parseDuration(s string) (Duration, error) {
	if s != "0" && strings.Trim(s, "0123456789._") == "" && s != "" {
		return 0, fmt.Errorf("%s has no unit; write %ss if seconds are meant", s, s)
	}
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n uint64
		if n, err = strconv.ParseUint(days, 10, 12); err == nil {
			d = time.Duration(n) * 24 * time.Hour
		} else if errors.Is(err, strconv.ErrRange) {
			return 0, fmt.Errorf("%s is too long; at most %s", s, longestDuration)
		}
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration; write one like 30s, 24h or 7d", s)
	case d < 0:
		return 0, fmt.Errorf("%s is negative", s)
	case Duration(d) > longestDuration:
		return 0, fmt.Errorf("%s is too long; at most %s", s, longestDuration)
	}
	return Duration(d), nil
}
