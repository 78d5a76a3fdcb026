package config

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// decodeFile puts the content of a file over the defaults in c. It is false when
// the file could not be read as YAML at all; every other problem leaves the
// default in its place, so that the rest can be judged.
//
// It walks the syntax tree itself: the library's own decoder stops at the first
// wrong type, turns an unquoted 0123 into "83", takes 30 for 30ns and forgets
// where a value was written.
func decodeFile(data []byte, c *Config, r *report) bool {
	root, bad := parseDocument(data)
	if bad != nil {
		r.add(nil, position{file: r.file, line: bad.line, column: bad.column}, "%s", bad.message)
		return false
	}
	d := decoder{newReader(root, r)}
	if root == nil {
		return true
	}
	top := d.positionOf(root.GetToken())
	n := d.resolve(nil, top, root)
	if _, ok := n.(*ast.MappingNode); !ok {
		if n != nil {
			d.add(nil, top, "must begin with a key such as database: or tools:, not with a %s", kindOf(n))
		}
		return false
	}
	d.value(nil, top, n, reflect.ValueOf(c).Elem())
	return true
}

// decoder fills Go values from syntax nodes. It goes no deeper than the Go types do.
type decoder struct{ *reader }

var (
	durationType = reflect.TypeFor[Duration]()
	urlType      = reflect.TypeFor[URL]()
)

// value decodes n, which is resolved, into v.
func (d decoder) value(at path, pos position, n ast.Node, v reflect.Value) {
	decode, isSection := d.scalar, true
	if k := v.Kind(); k == reflect.Struct {
		decode = d.section
	} else if k == reflect.Map {
		decode = d.named
	} else if k == reflect.Slice {
		decode = d.list
	} else {
		isSection = false
	}
	if _, isNull := n.(*ast.NullNode); !isNull {
		decode(at, pos, n, v)
	} else if !isSection {
		// A section may be empty: all its keys may be commented out.
		d.misread(at, pos, "has no value; write one or remove the key")
	}
}

// section decodes a mapping with fixed keys.
func (d decoder) section(at path, pos position, n ast.Node, v reflect.Value) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.misread(at, pos, "must be a mapping with keys such as %s, not a %s", strings.Join(keysOf(v.Type()), ", "), kindOf(n))
		return
	}
	for _, e := range d.entries(at, m) {
		field, ok := fieldOf(v, e.key)
		if !ok {
			d.add(at.to(e.key), e.pos, "unknown key; %s", suggestion(e.key, keysOf(v.Type())))
			continue
		}
		d.where[at.to(e.key).id()] = e.pos
		d.value(at.to(e.key), e.pos, e.value, field)
	}
}

// named decodes a mapping whose keys are names given by the user.
func (d decoder) named(at path, pos position, n ast.Node, v reflect.Value) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.misread(at, pos, "must be a mapping with names as keys, not a %s", kindOf(n))
		return
	}
	for _, e := range d.entries(at, m) {
		d.where[at.to(e.key).id()] = e.pos
		elem := newElement(v.Type().Elem())
		d.value(at.to(e.key), e.pos, e.value, elem)
		v.SetMapIndex(reflect.ValueOf(e.key), elem)
	}
}

// list decodes a sequence. Each element remembers its own place.
func (d decoder) list(at path, pos position, n ast.Node, v reflect.Value) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.misread(at, pos, "must be a list, not a %s", kindOf(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	for i, item := range s.Values {
		p := at.item(i)
		itemPos := pos
		if item != nil {
			itemPos = d.positionOf(firstToken(item))
		}
		d.where[p.id()] = itemPos
		elem := newElement(v.Type().Elem())
		if value := d.resolve(p, itemPos, item); value != nil {
			d.value(p, itemPos, value, elem)
		}
		v.Set(reflect.Append(v, elem))
	}
}

// scalar decodes text, numbers and truth values. Values of URLs are never shown, for they may hold a password.
func (d decoder) scalar(at path, pos position, n ast.Node, v reflect.Value) {
	text, ok := scalarText(n)
	switch {
	case !ok:
		d.misread(at, pos, "must be a single value, not a %s", kindOf(n))
	case strings.ContainsFunc(text, isControl):
		d.misread(at, pos, "contains a control character or a line break; write it on one line")
	case v.Type() == durationType:
		parsed, err := parseDuration(text)
		if err != nil {
			d.misread(at, pos, "%s", err)
			return
		}
		v.SetInt(int64(parsed))
	case v.Kind() == reflect.String:
		d.text(at, pos, n, text, v)
	case v.Kind() == reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.misread(at, pos, "must be true or false, not %s%s", printable(text), quotedHint(n))
			return
		}
		v.SetBool(b.Value)
	case v.Kind() == reflect.Int:
		i, err := strconv.Atoi(text)
		if _, ok := n.(*ast.IntegerNode); !ok || err != nil || len(text) > 1 && strings.TrimLeft(text, "+-")[0] == '0' {
			d.misread(at, pos, "must be a whole number in plain digits, not %s%s", printable(text), quotedHint(n))
			return
		}
		v.SetInt(int64(i))
	case v.Kind() == reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if !isNumber(n) || err != nil {
			d.misread(at, pos, "must be a number such as 50 or 0.5, not %s%s", printable(text), quotedHint(n))
			return
		}
		v.SetFloat(f)
	}
}

// text takes only what YAML reads as text: 0123, 1e5 and true are something else until they are quoted.
func (d decoder) text(at path, pos position, n ast.Node, text string, v reflect.Value) {
	switch n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
	default:
		if v.Type() == urlType {
			d.misread(at, pos, "must be text, not a %s; put it in quotes", kindOf(n))
			return
		}
		d.misread(at, pos, `must be text, but YAML reads %s as a %s; write "%s" in quotes`, printable(text), kindOf(n), text)
		return
	}
	v.SetString(text)
}

// scalarText is a scalar as it was written. Of anything else it is "" and false.
func scalarText(n ast.Node) (text string, ok bool) {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value, true
	case *ast.LiteralNode:
		return strings.TrimSuffix(x.Value.Value, "\n"), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	default:
		return "", false
	}
}

func isNumber(n ast.Node) bool {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
		return true
	default:
		return false
	}
}

// quotedHint explains why something that looks like a number or truth value is none.
func quotedHint(n ast.Node) string {
	s, ok := n.(*ast.StringNode)
	if !ok {
		return ""
	}
	if s.Token.Type == token.SingleQuoteType || s.Token.Type == token.DoubleQuoteType {
		return " in quotes"
	}
	return ""
}

func isControl(r rune) bool {
	return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029'
}

// firstToken is where a node begins; a mapping's own token is its first colon.
func firstToken(n ast.Node) *token.Token {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return m.Values[0].Key.GetToken()
	}
	return n.GetToken()
}

// newElement is an element of a map or list with its defaults.
func newElement(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch t {
	case reflect.TypeFor[Tool]():
		v.Set(reflect.ValueOf(defaultTool()))
	case reflect.TypeFor[Partition]():
		v.Set(reflect.ValueOf(defaultPartition()))
	}
	return v
}

// fieldOf finds a field by its YAML name.
func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if tag := v.Type().Field(i).Tag.Get("yaml"); tag == key && tag != "" && tag != "-" {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// keysOf lists the YAML names of a struct's fields.
func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag != "" && tag != "-" {
			keys = append(keys, tag)
		}
	}
	return keys
}
