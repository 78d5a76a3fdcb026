package config

import (
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// mostValues bounds what aliases and merges may expand to; a file of 100 tools has some 4,000 values.
const mostValues = 100_000

// entry is one key of a mapping and its value, which is never an anchor or an alias.
type entry struct {
	key   string
	pos   position
	value ast.Node
}

// reader follows anchors, aliases and merges in a syntax tree.
type reader struct {
	*report
	anchors map[string]*ast.AnchorNode
	left    int
}

func newReader(root ast.Node, r *report) *reader {
	rd := &reader{report: r, anchors: map[string]*ast.AnchorNode{}, left: mostValues}
	if root == nil {
		return rd
	}
	for _, n := range ast.Filter(ast.AnchorType, root) {
		anchor, ok := n.(*ast.AnchorNode)
		if !ok || anchor.Name == nil {
			continue
		}
		name := anchor.Name.GetToken().Value
		if _, twice := rd.anchors[name]; twice {
			rd.add(nil, rd.positionOf(anchor.GetToken()), "anchor &%s is defined twice; give each anchor its own name", printable(name))
			continue
		}
		rd.anchors[name] = anchor
	}
	return rd
}

func (rd *reader) positionOf(t *token.Token) position {
	if t == nil || t.Position == nil {
		return position{file: rd.file}
	}
	return position{file: rd.file, line: t.Position.Line, column: t.Position.Column}
}

// spend counts one value that is read. When the budget is used up it says so once and is false from then on.
func (rd *reader) spend(at path, pos position) bool {
	rd.left--
	if rd.left == 0 {
		rd.misread(at, pos, "aliases expand to more than %d values; write fewer of them", mostValues)
	}
	return rd.left > 0
}

// resolve follows anchors and aliases to a value. It is nil after a problem was recorded.
func (rd *reader) resolve(at path, pos position, n ast.Node) ast.Node {
	for {
		if !rd.spend(at, pos) {
			return nil
		}
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.AliasNode:
			name := x.Value.GetToken().Value
			anchor, ok := rd.anchors[name]
			if !ok || anchor.Value == nil || anchor.GetToken().Position.Offset > x.GetToken().Position.Offset {
				rd.misread(at, pos, "alias *%s has no anchor &%s above it", printable(name), printable(name))
				return nil
			}
			n = anchor.Value
		case *ast.TagNode:
			rd.misread(at, pos, "YAML tags such as %s are not used here; remove it", printable(x.GetToken().Value))
			return nil
		case nil:
			rd.misread(at, pos, "has no value")
			return nil
		default:
			return n
		}
	}
}

// entries lists the keys of a mapping, each once. A key written in the mapping
// itself wins over a merged one (<<), and of two merged ones the first wins.
func (rd *reader) entries(at path, n *ast.MappingNode) []entry {
	var own, merged []entry
	seen := map[string]position{}
	for _, pair := range n.Values {
		pos := rd.positionOf(pair.Key.GetToken())
		if _, ok := pair.Key.(*ast.MergeKeyNode); ok {
			merged = append(merged, rd.merged(at, pos, pair.Value)...)
			continue
		}
		key, ok := pair.Key.(*ast.StringNode)
		if !ok {
			rd.add(at, pos, "a key must be text; put %s in quotes", printable(pair.Key.GetToken().Value))
			continue
		}
		if first, twice := seen[key.Value]; twice {
			rd.add(at.to(key.Value), pos, "this key is already written in line %d; remove one of them", first.line)
			continue
		}
		seen[key.Value] = pos
		if value := rd.resolve(at.to(key.Value), pos, pair.Value); value != nil {
			own = append(own, entry{key.Value, pos, value})
		}
	}
	for _, e := range merged {
		if _, ok := seen[e.key]; !ok {
			seen[e.key] = e.pos
			own = append(own, e)
		}
	}
	return own
}

// merged lists the keys of the value of a <<, which is a mapping or a list of mappings.
func (rd *reader) merged(at path, pos position, n ast.Node) []entry {
	switch x := rd.resolve(at.to("<<"), pos, n).(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		return rd.entries(at, x)
	case *ast.SequenceNode:
		var all []entry
		for _, v := range x.Values {
			all = append(all, rd.merged(at, pos, v)...)
		}
		return all
	default:
		rd.add(at.to("<<"), pos, "merges a %s; only mappings can be merged", kindOf(x))
		return nil
	}
}

// kindOf names a value for people.
func kindOf(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode:
		return "mapping"
	case *ast.SequenceNode:
		return "list"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "number"
	case *ast.BoolNode:
		return "truth value"
	case *ast.NullNode:
		return "null"
	default:
		return "value of another kind"
	}
}
