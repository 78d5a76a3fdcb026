package receipt

import "bytes"

// forbidden is the first spot of an answer that a JSON parser takes and we do not.
type forbidden struct {
	at   int64 // byte offset, -1 when there is no such spot
	text string
}

// scan looks for an escaped NUL character, which PostgreSQL's jsonb and text refuse, and for nesting below
// depth levels. It follows strings and brackets only, so what it says is meaningful up to the first syntax
// error of the body.
func scan(body []byte, depth int) forbidden {
	level := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '{', '[':
			if level++; level > depth {
				return forbidden{at: int64(i), text: "nested too deeply"}
			}
		case '}', ']':
			level--
		case '"':
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] != '\\' {
					continue
				}
				if bytes.HasPrefix(body[i:], []byte(`\u0000`)) {
					return forbidden{at: int64(i), text: `a NUL character (\u0000)`}
				}
				i++ // whatever is escaped does not end the string
			}
		}
	}
	return forbidden{at: -1}
}
