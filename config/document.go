package config

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// The parser needs time and memory that grow with the square of depth and width
// (4,000 nested brackets: 33 ms and rising), so both are bounded before it runs.
const (
	mostTokens  = 50_000
	mostDepth   = 32
	mostAnchors = 1_000
)

// flaw is what keeps a file from being read at all.
type flaw struct {
	line, column int
	message      string
}

// parseDocument turns the text into a syntax tree. A file without content is a
// nil node; so is one that cannot be parsed, with a flaw.
func parseDocument(data []byte) (root ast.Node, bad *flaw) {
	defer func() {
		// The library promises no freedom from panics, and this is input from outside.
		if p := recover(); p != nil {
			root, bad = nil, &flaw{message: fmt.Sprintf("cannot be parsed as YAML: %v", p)}
		}
	}()
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if bad := checkText(data); bad != nil {
		return nil, bad
	}
	tokens := lexer.Tokenize(string(data))
	if bad := checkSize(tokens); bad != nil {
		return nil, bad
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxFlaw(err)
	}
	for _, doc := range file.Docs {
		if _, directive := doc.Body.(*ast.DirectiveNode); directive || doc.Body == nil {
			continue
		}
		if root != nil {
			pos := doc.Body.GetToken().Position
			if doc.Start != nil {
				pos = doc.Start.Position
			}
			return nil, &flaw{pos.Line, pos.Column, "a second document begins here; one file holds one document, remove the ---"}
		}
		root = doc.Body
	}
	return root, nil
}

// syntaxFlaw takes the message without the excerpt that the library prints, for the excerpt may show a password.
func syntaxFlaw(err error) *flaw {
	var at yaml.Error
	if !errors.As(err, &at) || at.GetToken() == nil {
		return &flaw{message: "is not valid YAML"}
	}
	pos := at.GetToken().Position
	return &flaw{pos.Line, pos.Column, "is not valid YAML: " + printable(at.GetMessage())}
}

// checkText refuses what is not text, and tabs outside comments: YAML forbids
// them as indentation, and the parser drops them silently from plain values.
func checkText(data []byte) *flaw {
	line, column := 1, 1
	comment := false
	previous := '\n'
	for i := 0; i < len(data); {
		char, size := utf8.DecodeRune(data[i:])
		switch {
		case char == utf8.RuneError && size == 1:
			return &flaw{line, column, "is not UTF-8 text"}
		case char == '\t' && !comment:
			return &flaw{line, column, `a tab character; use spaces (inside double quotes write \t)`}
		case char < ' ' && char != '\t' && char != '\n' && char != '\r', char == 0x7f:
			return &flaw{line, column, fmt.Sprintf("control character %U; the file must be plain text", char)}
		case char == '#' && (previous == ' ' || previous == '\n'):
			comment = true
		}
		i, previous = i+size, char
		column++
		if char == '\n' {
			line, column, comment = line+1, 1, false
		}
	}
	return nil
}

// checkSize bounds what the parser gets to see.
func checkSize(tokens token.Tokens) *flaw {
	if len(tokens) > mostTokens {
		return &flaw{message: fmt.Sprintf("has %d words and signs, more than the %d that are read; is it the right file?", len(tokens), mostTokens)}
	}
	var depth, anchors, line, inLine int
	for _, t := range tokens {
		if t.Position.Line != line {
			line, inLine = t.Position.Line, 0
		}
		switch t.Type { //nolint:exhaustive // only tokens that nest or expand matter
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType, token.MappingKeyType:
			inLine++
		case token.AnchorType:
			anchors++
		}
		if depth > mostDepth || inLine > mostDepth || anchors > mostAnchors {
			return &flaw{t.Position.Line, t.Position.Column, fmt.Sprintf("nests deeper than %d levels, or has more than %d anchors; no key here needs that", mostDepth, mostAnchors)}
		}
	}
	return nil
}
