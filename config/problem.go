package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing that is wrong, where it was written, and what to do about it.
type Problem struct {
	// File is the file, or "environment", or "flags".
	File string `json:"file"`
	// Line and Column count from 1, columns in characters; 0 means that there is no place to point at.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Key is the path of the key, such as tools.payment.charge.settle, or the name of a variable. It may be empty.
	Key     string `json:"key"`
	Message string `json:"message"`
}

// String is file:line:column: key: message, without the parts that are not known.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(printable(p.File))
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	if p.Key != "" {
		b.WriteString(": " + p.Key)
	}
	b.WriteString(": " + p.Message)
	return b.String()
}

// Problems is the error of [Load]: everything that is wrong, in the order in
// which it is written; what is wrong with the environment follows the file.
type Problems struct {
	List []Problem `json:"problems"`
}

// Error is one problem per line.
func (p *Problems) Error() string {
	lines := make([]string, len(p.List))
	for i, one := range p.List {
		lines[i] = one.String()
	}
	return strings.Join(lines, "\n")
}

const (
	inEnvironment = "environment"
	inFlags       = "flags"
)

// position is where a key was written. With key set it names a variable instead of a path.
type position struct {
	file         string
	line, column int
	key          string
}

// report gathers problems and remembers where each key was written.
type report struct {
	file   string
	where  map[string]position
	broken map[string]bool
	list   []Problem
}

func newReport(file string) *report {
	return &report{file: file, where: map[string]position{}, broken: map[string]bool{}}
}

// position is where a key was written, or else the nearest key around it that was.
func (r *report) position(at path) position {
	for p := at; len(p) > 0; p = p[:len(p)-1] {
		if pos, ok := r.where[p.id()]; ok {
			return pos
		}
	}
	return position{file: r.file}
}

// written tells whether a key stands in the file, with whatever value.
func (r *report) written(at path) bool {
	_, ok := r.where[at.id()]
	return ok
}

// sound tells whether a value, and what stands around it, could be read as it was meant.
func (r *report) sound(at path) bool {
	for p := at; len(p) > 0; p = p[:len(p)-1] {
		if r.broken[p.id()] {
			return false
		}
	}
	return true
}

// misread records that a value could not be read; nothing more is said about it.
func (r *report) misread(at path, pos position, format string, args ...any) {
	r.broken[at.id()] = true
	r.add(at, pos, format, args...)
}

// wrong records that a value is not acceptable. It stays silent when the value,
// or one of those it is compared with, could not be read in the first place.
func (r *report) wrong(at path, comparedWith []path, format string, args ...any) {
	for _, p := range append([]path{at}, comparedWith...) {
		if !r.sound(p) {
			return
		}
	}
	r.add(at, r.position(at), format, args...)
}

func (r *report) add(at path, pos position, format string, args ...any) {
	key := pos.key
	if key == "" {
		key = at.String()
	}
	r.list = append(r.list, Problem{
		File: pos.file, Line: pos.line, Column: pos.column,
		Key: key, Message: fmt.Sprintf(format, args...),
	})
}

// err is nil, or the problems in order.
func (r *report) err() error {
	if len(r.list) == 0 {
		return nil
	}
	rank := map[string]int{inEnvironment: 1, inFlags: 2}
	slices.SortStableFunc(r.list, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(rank[a.File], rank[b.File]),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Key, b.Key),
		)
	})
	return &Problems{List: r.list}
}

// path leads to a key from the top of the file. An element of a list is a segment like [0].
type path []string

// to is the path of something inside; it never shares memory with its parent.
func (p path) to(segments ...string) path {
	return append(slices.Clone(p), segments...)
}

// item is the path of one element of a list.
func (p path) item(i int) path { return p.to("[" + strconv.Itoa(i) + "]") }

// id distinguishes paths that look the same when written with dots.
func (p path) id() string { return strings.Join(p, "\x00") }

func (p path) String() string {
	var b strings.Builder
	for i, segment := range p {
		if i > 0 && !strings.HasPrefix(segment, "[") {
			b.WriteByte('.')
		}
		b.WriteString(printable(segment))
	}
	return b.String()
}

// printable keeps a text that comes from outside on one line, and short.
func printable(s string) string {
	const longest = 250
	if len(s) > longest {
		s = s[:longest] + "…"
	}
	if quoted := strconv.Quote(s); quoted != `"`+s+`"` || s == "" {
		return quoted
	}
	return s
}
