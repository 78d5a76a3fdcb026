package partition

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Bound is one end of a range of time. MINVALUE < -infinity < every instant < infinity < MAXVALUE.
type Bound struct {
	kind kind
	at   time.Time // UTC, of kind instants
}

// kind orders the bounds that are no instants around those that are.
type kind int

const (
	minValue kind = iota - 2
	negInfinity
	instants
	infinity
	maxValue
)

// boundWords are the bounds that PostgreSQL writes as a word. The infinities are values of the column, and quoted.
var boundWords = map[string]kind{"MINVALUE": minValue, "'-infinity'": negInfinity, "'infinity'": infinity, "MAXVALUE": maxValue}

func boundAt(t time.Time) Bound { return Bound{at: t.UTC().Round(0)} }

// Compare is negative if b is below c, zero if they are equal, positive if b is above c.
func (b Bound) Compare(c Bound) int {
	return cmp.Or(cmp.Compare(b.kind, c.kind), b.at.Compare(c.at))
}

// Time is the instant of the bound, in UTC; false if it is MINVALUE, MAXVALUE or infinite.
func (b Bound) Time() (time.Time, bool) { return b.at, b.kind == instants }

// String is an instant as in RFC 3339, in UTC, with BC and years of more than four digits where needed, or one of MINVALUE, -infinity,
// infinity and MAXVALUE. PostgreSQL reads all of them; the instants and infinities are to be quoted.
func (b Bound) String() string {
	for word, k := range boundWords {
		if k == b.kind {
			return strings.Trim(word, "'")
		}
	}
	year, era := b.at.Year(), ""
	if year < 1 {
		year, era = 1-year, " BC"
	}
	return fmt.Sprintf("%04d-%sZ%s", year, b.at.Format("01-02T15:04:05.999999"), era)
}

// Range is the time that a partition holds: from Lower up to, and not including, Upper. The default partition holds what the others do
// not, and has neither.
type Range struct {
	Lower, Upper Bound
	Default      bool
}

// ParseRange reads what pg_get_expr(relpartbound, oid) says in a session with DateStyle ISO and any TimeZone. Dates and timestamps without
// a zone are in UTC. If the key has several columns the first is the time. A partition whose upper bound goes on in the second column,
// as in TO ('2024-01-02', 'x'), has rows of that instant too: its Upper is the next one that the column can hold, so that it is never due
// too early.
func ParseRange(text string) (Range, error) {
	if text == "DEFAULT" {
		return Range{Default: true}, nil
	}
	m := rangeText.FindStringSubmatch(text)
	if m == nil {
		return Range{}, notTime(text, "it is not FROM … TO …")
	}
	lower, err := parseBound(m[1], false)
	if err != nil {
		return Range{}, notTime(text, err.Error())
	}
	upper, err := parseBound(m[2], m[3] != "" && !strings.HasPrefix(m[3], ", MINVALUE"))
	if err != nil {
		return Range{}, notTime(text, err.Error())
	}
	if lower.Compare(upper) > 0 {
		return Range{}, notTime(text, "it ends before it begins")
	}
	return Range{Lower: lower, Upper: upper}, nil
}

func notTime(text, why string) error {
	return fmt.Errorf("the bound %q is no range of time: %s; the table must be partitioned BY RANGE of a timestamptz, timestamp or date, "+
		"first in the key, and the bound be read with DateStyle ISO", text, why)
}

// valueText is one value of a bound: words and numbers are bare, all else is quoted, with quotes doubled.
const valueText = `(?:[^',()]+|[^',()]*'(?:[^']|'')*')`

var (
	rangeText = regexp.MustCompile(`^FOR VALUES FROM \((` + valueText + `)(?:, ` + valueText + `)*\) TO \((` + valueText + `)((?:, ` + valueText + `)*)\)$`)
	// The year, month and day; the hour, minute, second and its fraction; the sign of the zone, its hours, minutes and seconds; the era.
	timeText = regexp.MustCompile(`^'(\d{4,7})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?)?( BC)?'$`)
)

// parseBound reads the first value of a bound. With beyond it is the next that the type can hold: a date is followed by the next day.
func parseBound(text string, beyond bool) (Bound, error) {
	if k, ok := boundWords[text]; ok {
		return Bound{kind: k}, nil
	}
	m := timeText.FindStringSubmatch(text)
	if m == nil {
		return Bound{}, fmt.Errorf("%s is no time", text)
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(m[i]) // digits, or nothing where the text has no such part
		return n
	}
	year, month, day := number(1), time.Month(number(2)), number(3)
	if m[12] != "" {
		year = 1 - year
	}
	micros, _ := strconv.Atoi((m[7] + "000000")[:6])
	minute, second := number(5), number(6)
	t := time.Date(year, month, day, number(4), minute, second, micros*1000, time.UTC)
	if t.Month() != month || t.Day() != day || t.Minute() != minute || t.Second() != second { // Date carries what is too large
		return Bound{}, fmt.Errorf("%s is no time", text)
	}
	east := time.Duration(number(9))*time.Hour + time.Duration(number(10))*time.Minute + time.Duration(number(11))*time.Second
	if m[8] == "-" {
		east = -east
	}
	t = t.Add(-east)
	switch {
	case !beyond:
	case m[4] == "":
		t = t.AddDate(0, 0, 1)
	default:
		t = t.Add(time.Microsecond)
	}
	return boundAt(t), nil
}
