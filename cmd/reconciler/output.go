package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// printJSON writes one value: indented for -o json, on one line for jsonl.
func (a *app) printJSON(v any) error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if a.output == "json" {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := a.out.Write(escapeUnseen(text.Bytes()))
	return err
}

// escapeUnseen escapes what JSON allows in a string as it is and what a terminal obeys: U+009B begins a control sequence as ESC
// does, and U+202E turns the direction of reading. The value stays the same.
func escapeUnseen(text []byte) []byte {
	unseen := func(r rune) bool { return r >= 0x7f && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) }
	if !bytes.ContainsFunc(text, unseen) {
		return text
	}
	escaped := make([]byte, 0, len(text)+64)
	for _, r := range string(text) {
		if !unseen(r) {
			escaped = utf8.AppendRune(escaped, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, unit)
		}
	}
	return escaped
}

// printList writes a list as one JSON array, or as one object a line.
func printList[T any](a *app, list []T) error {
	if a.output == "json" {
		if list == nil {
			list = []T{}
		}
		return a.printJSON(list)
	}
	for _, v := range list {
		if err := a.printJSON(v); err != nil {
			return err
		}
	}
	return nil
}

// sink is stdout. It keeps the first error, so that a full disk is not taken for success however much is printed.
type sink struct {
	w   io.Writer
	err error
}

func (s *sink) Write(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(b)
	s.err = err
	return n, err
}

// terminal reports whether w is a person's screen.
func terminal(w io.Writer) bool {
	if s, ok := w.(*sink); ok {
		w = s.w
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colour is an ANSI colour; the zero value is none.
type colour int

const (
	plain  colour = 0
	red    colour = 31
	green  colour = 32
	yellow colour = 33
	dim    colour = 90
)

// cell is one field of a table.
type cell struct {
	text   string
	colour colour
	right  bool // numbers line up at the right
}

// table prints aligned columns. It is ours because text/tabwriter counts the bytes of a colour as width.
type table struct {
	head []string
	rows [][]cell
}

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

func words(text string) cell { return cell{text: text} }

func number(n int) cell {
	c := cell{text: thousands(n), right: true}
	if n == 0 {
		c.colour = dim
	}
	return c
}

func (t *table) print(w io.Writer) {
	colours := terminal(w) && os.Getenv("NO_COLOR") == ""
	width := make([]int, len(t.head))
	for i, h := range t.head {
		width[i] = utf8.RuneCountInString(h)
	}
	for _, row := range t.rows {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c.text))
		}
	}
	line := func(cells []cell) {
		var b strings.Builder
		for i, c := range cells {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c.text))
			text := c.text
			if colours && c.colour != plain {
				text = fmt.Sprintf("\x1b[%dm%s\x1b[0m", c.colour, text)
			}
			if c.right {
				text = pad + text
			} else {
				text += pad
			}
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(text)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	if strings.Join(t.head, "") != "" {
		head := make([]cell, len(t.head))
		for i, h := range t.head {
			head[i] = cell{text: h, colour: dim, right: len(t.rows) > 0 && t.rows[0][i].right}
		}
		line(head)
	}
	for _, row := range t.rows {
		line(row)
	}
}

// thousands writes 12345 as 12,345.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// ago tells an instant as people do: 5s ago, in 3m, 2d ago.
func ago(t, now time.Time) string {
	d := now.Sub(t)
	if d < 0 {
		return "in " + span(-d)
	}
	return span(d) + " ago"
}

func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d < 2*365*24*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	return fmt.Sprintf("%dy", d/(365*24*time.Hour))
}
