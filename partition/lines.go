package partition

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// shape checks that lines are objects of certain columns, in their order and without white space, as row_to_json writes them. The values
// are scalars. It is fed in pieces of any size and keeps nothing of them, for a line may have a gigabyte.
type shape struct {
	keys [][]byte // {"a": then ,"b": and so on; the last is the closing brace and the newline

	column int // the number of keys that are complete
	state  state
	rest   []byte // of a key or word
	digits int    // of an escape, still to come
	rune   []byte // the beginning of one that the last piece has cut
}

// state is a place within a line.
type state int

const (
	inKey   state = iota // rest has what must follow
	inWord               // the same, in true, false and null
	inValue              // before its first byte
	inString
	inEscape
	inHex
	// Places within a number. Only after the first four it may end.
	inZero
	inInteger
	inFraction
	inExponent
	afterMinus
	afterPoint
	afterE
	afterSign
)

func newShape(cols []Column) *shape {
	s := &shape{}
	for i, c := range cols {
		opening := byte(',')
		if i == 0 {
			opening = '{'
		}
		s.keys = append(s.keys, append(jsonString([]byte{opening}, c.Name), ':'))
	}
	s.keys = append(s.keys, []byte("}\n"))
	s.expectKey()
	return s
}

// complete tells whether no line is begun.
func (s *shape) complete() bool {
	return s.column == 0 && s.state == inKey && len(s.rest) == len(s.keys[0])
}

// write takes the next piece; false says that it is wrong.
func (s *shape) write(p []byte) bool {
	ok := s.utf8(p)
	for ok && len(p) > 0 {
		switch s.state {
		case inKey, inWord:
			p, ok = s.literal(p)
		case inString:
			p, ok = s.text(p)
		case inValue, inEscape, inHex, inZero, inInteger, inFraction, inExponent, afterMinus, afterPoint, afterE, afterSign:
			var next state
			if next, ok = s.next(p[0]); next == inKey {
				s.expectKey() // it begins with this byte
			} else {
				s.state, p = next, p[1:]
			}
		}
	}
	return ok
}

// literal takes what has to follow.
func (s *shape) literal(p []byte) ([]byte, bool) {
	n := min(len(p), len(s.rest))
	if !bytes.Equal(p[:n], s.rest[:n]) {
		return nil, false
	}
	s.rest = s.rest[n:]
	switch {
	case len(s.rest) > 0:
	case s.state == inWord:
		s.expectKey()
	case s.column == len(s.keys)-1:
		s.column = 0
		s.expectKey()
	default:
		s.column++
		s.state = inValue
	}
	return p[n:], true
}

// text takes the bytes of a string up to its end or the next escape.
func (s *shape) text(p []byte) ([]byte, bool) {
	for i, c := range p {
		switch {
		case c == '"':
			s.expectKey()
			return p[i+1:], true
		case c == '\\':
			s.state = inEscape
			return p[i+1:], true
		case c < ' ':
			return nil, false
		}
	}
	return nil, true
}

func (s *shape) expectKey() { s.state, s.rest = inKey, s.keys[s.column] }

// next is where byte c leads to; inKey if a number ends before c.
func (s *shape) next(c byte) (state, bool) {
	digit := '0' <= c && c <= '9'
	switch s.state {
	case inValue:
		switch {
		case c == '"':
			return inString, true
		case c == '-':
			return afterMinus, true
		case c == '0':
			return inZero, true
		case digit:
			return inInteger, true
		}
		for _, word := range []string{"null", "true", "false"} {
			if c == word[0] {
				s.rest = []byte(word[1:])
				return inWord, true
			}
		}
		return 0, false
	case inEscape:
		if c == 'u' {
			s.digits = 4
			return inHex, true
		}
		return inString, bytes.IndexByte([]byte(`"\/bfnrt`), c) >= 0
	case inHex:
		s.digits--
		if s.digits == 0 {
			return inString, isHex(c)
		}
		return inHex, isHex(c)
	case afterMinus:
		if c == '0' {
			return inZero, true
		}
		return inInteger, digit
	case afterPoint:
		return inFraction, digit
	case afterSign:
		return inExponent, digit
	case afterE:
		if c == '+' || c == '-' {
			return afterSign, true
		}
		return inExponent, digit
	case inZero, inInteger, inFraction, inExponent:
		switch {
		case digit:
			return s.state, s.state != inZero
		case c == '.':
			return afterPoint, s.state == inZero || s.state == inInteger
		case c == 'e' || c == 'E':
			return afterE, s.state != inExponent
		}
		return inKey, true
	case inKey, inWord, inString:
	}
	return 0, false
}

// utf8 checks the bytes of the piece as text.
func (s *shape) utf8(p []byte) bool {
	for len(s.rune) > 0 && len(p) > 0 {
		s.rune = append(s.rune, p[0])
		p = p[1:]
		if utf8.FullRune(s.rune) {
			if !utf8.Valid(s.rune) {
				return false
			}
			s.rune = s.rune[:0]
		}
	}
	for i := len(p) - 1; i >= max(0, len(p)-utf8.UTFMax); i-- {
		if utf8.RuneStart(p[i]) {
			if !utf8.FullRune(p[i:]) {
				s.rune = append(s.rune, p[i:]...)
				p = p[:i]
			}
			break
		}
	}
	return utf8.Valid(p)
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// jsonString appends s as PostgreSQL writes a JSON string.
func jsonString(b []byte, s string) []byte {
	short := map[byte]byte{'\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't', '"': '"', '\\': '\\'}
	b = append(b, '"')
	for i := range len(s) {
		c := s[i]
		switch e, ok := short[c]; {
		case ok:
			b = append(b, '\\', e)
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
