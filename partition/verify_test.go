package partition

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// written is an export of these lines, which have the columns a and b, made without a database.
func written(t testing.TB, lines ...string) (manifest string, m Manifest) {
	t.Helper()
	dir := t.TempDir()
	temp, err := createTemp(filepath.Join(dir, "p."))
	if err != nil {
		t.Fatal(err)
	}
	w, err := newObjectWriter(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if err := w.line([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := w.finish()
	if err != nil {
		t.Fatal(err)
	}
	m = Manifest{
		Format: format, Table: "public.parent", Partition: "public.p",
		Columns: []Column{{Name: "a", Type: "integer", Encoding: EncodingJSON}, {Name: "b", Type: "text[]", Encoding: EncodingText}},
	}
	m.set(c)
	object := filepath.Join(dir, "p."+digest12(m.Rows, m.Digest)+objectSuffix)
	m.Object = filepath.Base(object)
	if err := rename(temp.Name(), object); err != nil {
		t.Fatal(err)
	}
	if _, err := m.place(filepath.Join(dir, "p."), manifestOf(object)); err != nil {
		t.Fatal(err)
	}
	return manifestOf(object), m
}

// someLines are more than a block of zstd has.
func someLines(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf(`{"a":%d,"b":"{%x}"}`, i, sha256.Sum256([]byte{byte(i), byte(i >> 8)}))
	}
	return lines
}

// lie changes the manifest and writes it as it is.
func lie(t testing.TB, manifest string, change func(m *Manifest)) {
	t.Helper()
	m, err := readManifest(manifest)
	if err != nil {
		t.Fatal(err)
	}
	change(&m)
	text, err := m.marshal()
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, manifest, text)
}

func rewrite(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// refused fails the test unless the verification does, with these words and the name of the object or the manifest.
func refused(t testing.TB, manifest string, words ...string) {
	t.Helper()
	_, err := VerifyObject(manifest)
	if err == nil {
		t.Error("it was verified")
		return
	}
	if !strings.Contains(err.Error(), strings.TrimSuffix(manifest, manifestSuffix)) {
		t.Errorf("%v: does not name the file", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: does not say %q", err, w)
		}
	}
}

func TestAnObjectIsVerifiedAgainstItsManifest(t *testing.T) {
	t.Parallel()
	for _, lines := range [][]string{nil, {`{"a":1,"b":null}`}, someLines(10_000)} {
		manifest, want := written(t, lines...)
		m, err := VerifyObject(manifest)
		if err != nil || m.Rows != int64(len(lines)) || !m.agrees(want) {
			t.Errorf("%d lines: %+v, %v", len(lines), m, err)
		}
	}
}

func TestAFlippedBitIsFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("one goroutine, in which the race detector sees nothing and takes long")
	}
	manifest, _ := written(t, someLines(20)...)
	good := read(t, objectOf(manifest))
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		rewrite(t, objectOf(manifest), bad)
		refused(t, manifest)
	}
}

func TestATruncatedObjectIsFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("one goroutine, in which the race detector sees nothing and takes long")
	}
	manifest, _ := written(t, someLines(3000)...)
	good := read(t, objectOf(manifest))
	for n := 0; n < len(good); n += 1 + len(good)/500 {
		rewrite(t, objectOf(manifest), good[:n])
		refused(t, manifest, "bytes, its manifest says")
		// Nor does a manifest help that was made for it.
		sum := sha256.Sum256(good[:n])
		lie(t, manifest, func(m *Manifest) { m.Bytes, m.SHA256 = max(1, int64(n)), hex.EncodeToString(sum[:]) })
		refused(t, manifest)
	}
}

func TestALieInTheManifestIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(m *Manifest)
		words  []string
	}{
		"rows":             {func(m *Manifest) { m.Rows++ }, []string{"whose name does not say"}},
		"digest":           {func(m *Manifest) { m.Digest = "12" }, []string{"whose name does not say"}},
		"no digest":        {func(m *Manifest) { m.Digest = "one" }, []string{"no decimal number"}},
		"sha256":           {func(m *Manifest) { m.SHA256 = strings.Repeat("ab", 32) }, []string{"has the sha256", "abab"}},
		"no sha256":        {func(m *Manifest) { m.SHA256 = "ab" }, []string{"sha256"}},
		"size":             {func(m *Manifest) { m.Bytes-- }, []string{"bytes, its manifest says"}},
		"more lines":       {func(m *Manifest) { m.RawBytes++ }, []string{"bytes of lines"}},
		"fewer lines":      {func(m *Manifest) { m.RawBytes-- }, []string{"has more than the"}},
		"format":           {func(m *Manifest) { m.Format = 2 }, []string{"format 1", "manifest"}},
		"another object":   {func(m *Manifest) { m.Object = "x" + m.Object }, []string{"is about the object"}},
		"a path":           {func(m *Manifest) { m.Object = "../" + m.Object }, []string{"is about an object"}},
		"renamed column":   {func(m *Manifest) { m.Columns[0].Name = "c" }, []string{"line 1 is no JSON object of the columns"}},
		"column too many":  {func(m *Manifest) { m.Columns = append(m.Columns, Column{Name: "c", Encoding: EncodingJSON}) }, []string{"line 1"}},
		"column missing":   {func(m *Manifest) { m.Columns = m.Columns[:1] }, []string{"line 1"}},
		"order":            {func(m *Manifest) { m.Columns[0], m.Columns[1] = m.Columns[1], m.Columns[0] }, []string{"line 1"}},
		"no columns":       {func(m *Manifest) { m.Columns = nil }, []string{"no columns"}},
		"column twice":     {func(m *Manifest) { m.Columns[1] = m.Columns[0] }, []string{"twice"}},
		"unknown encoding": {func(m *Manifest) { m.Columns[0].Encoding = "xml" }, []string{"unknown encoding"}},
		"no table":         {func(m *Manifest) { m.Table = "" }, []string{"names no table"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifest, _ := written(t, someLines(10)...)
			lie(t, manifest, c.change)
			refused(t, manifest, c.words...)
		})
	}
}

// The names of both files are changed as well, so that nothing is left but the content.
func TestACompleteLieIsFoundByTheContent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(m *Manifest){
		"rows":   func(m *Manifest) { m.Rows++ },
		"digest": func(m *Manifest) { m.Digest = "-" + strings.TrimPrefix(m.Digest, "-") + "0" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifest, m := written(t, someLines(10)...)
			change(&m)
			object := filepath.Join(filepath.Dir(manifest), "p."+digest12(m.Rows, m.Digest)+objectSuffix)
			if err := rename(objectOf(manifest), object); err != nil {
				t.Fatal(err)
			}
			m.Object = filepath.Base(object)
			if _, err := m.place(filepath.Join(filepath.Dir(manifest), "p."), manifestOf(object)); err != nil {
				t.Fatal(err)
			}
			refused(t, manifestOf(object), "rows with the digest")
		})
	}
}

func TestAManifestThatIsNoneIsNamed(t *testing.T) {
	t.Parallel()
	manifest, _ := written(t, someLines(10)...)
	good := read(t, manifest)
	for name, content := range map[string]string{
		"empty":     ``,
		"truncated": string(good[:len(good)/2]),
		"array":     `[]`,
		"null":      `null`,
		"twice":     strings.Replace(string(good), `"rows": 10`, `"rows": 10, "rows": 11`, 1),
		"unknown":   strings.Replace(string(good), `"rows"`, `"lines"`, 1),
		"one more":  strings.Replace(string(good), `"rows": 10`, `"rows": 10, "lines": 10`, 1),
		"fraction":  strings.Replace(string(good), `"rows": 10`, `"rows": 10.5`, 1),
		"huge":      strings.Replace(string(good), `"rows": 10`, `"rows": 99999999999999999999`, 1),
		"case":      strings.Replace(string(good), `"rows"`, `"ROWS"`, 1),
		"more":      string(good) + `{}`,
		"large":     string(good) + strings.Repeat(" ", maxManifest),
	} {
		rewrite(t, manifest, []byte(content))
		t.Run(name, func(t *testing.T) { refused(t, manifest, "manifest") })
	}
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	refused(t, manifest, "no such file")
}

// compressed replaces the object by one of any content, and makes the manifest agree with it as far as it can.
func compressed(t testing.TB, manifest string, object []byte, raw int64) {
	t.Helper()
	rewrite(t, objectOf(manifest), object)
	sum := sha256.Sum256(object)
	lie(t, manifest, func(m *Manifest) { m.Bytes, m.RawBytes, m.SHA256 = int64(len(object)), raw, hex.EncodeToString(sum[:]) })
}

func TestWhatIsNoLinesIsFound(t *testing.T) {
	t.Parallel()
	pack, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	line := `{"a":1,"b":null}` + "\n"
	for name, c := range map[string]struct {
		object []byte
		word   string
	}{
		"garbage after the frame":   {append(pack.EncodeAll([]byte(line), nil), "garbage"...), "cannot be read after line 1"},
		"another frame":             {append(pack.EncodeAll([]byte(line), nil), pack.EncodeAll([]byte(line), nil)...), "2 rows"},
		"no newline at the end":     {pack.EncodeAll([]byte(strings.TrimSpace(line)), nil), "line 1 is not complete"},
		"an empty line":             {pack.EncodeAll([]byte(line+"\n"+line), nil), "line 2 is no JSON object"},
		"white space":               {pack.EncodeAll([]byte(`{"a": 1,"b":null}`+"\n"), nil), "line 1 is no JSON object"},
		"two objects on a line":     {pack.EncodeAll([]byte(`{"a":1,"b":null}{"a":1,"b":null}`+"\n"), nil), "line 1 is no JSON object"},
		"a missing column":          {pack.EncodeAll([]byte(`{"a":1}`+"\n"), nil), "line 1 is no JSON object"},
		"no UTF-8":                  {pack.EncodeAll([]byte("{\"a\":1,\"b\":\"\xff\"}\n"), nil), "line 1 is no JSON object"},
		"text instead of zstd":      {[]byte(line), "cannot be read"},
		"an object within a column": {pack.EncodeAll([]byte(`{"a":{},"b":null}`+"\n"), nil), "line 1 is no JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifest, _ := written(t, strings.TrimSpace(line))
			compressed(t, manifest, c.object, 1000)
			refused(t, manifest, c.word)
		})
	}
}

// A small file that unpacks to gigabytes is given up when it exceeds what the manifest says, and one whose window is large at once. What
// the manifest says itself may be gigabytes: then it takes time, and no memory.
func TestADecompressionBombTakesNoMemory(t *testing.T) { // alone, for it looks at what is allocated
	bomb := func(size int, opts ...zstd.EOption) []byte {
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, opts...)
		if err != nil {
			t.Fatal(err)
		}
		piece := bytes.Repeat([]byte("x"), 1<<20)
		_, _ = w.Write([]byte(`{"a":1,"b":"`))
		for range size >> 20 {
			_, _ = w.Write(piece)
		}
		_, _ = w.Write([]byte("\"}\n"))
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	manifest, _ := written(t, `{"a":1,"b":null}`)
	large := bomb(256 << 20)
	for name, c := range map[string]struct {
		object []byte
		raw    int64
		word   string
	}{
		"beyond the manifest":   {large, 1 << 20, "has more than the 1048576 bytes"},
		"as the manifest says":  {large, 1 << 40, "rows with the digest"},
		"with a window of 512M": {bomb(1<<20, zstd.WithWindowSize(512<<20)), 1 << 40, "window"},
	} {
		t.Run(name, func(t *testing.T) {
			compressed(t, manifest, c.object, c.raw)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			refused(t, manifest, c.word)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
				t.Errorf("%d MiB were allocated", got>>20)
			}
		})
	}
}

func TestATreeIsVerifiedAsAWhole(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put := func(name string, spoil func(manifest string)) {
		manifest, _ := written(t, someLines(10)...)
		spoil(manifest)
		if err := os.Rename(filepath.Dir(manifest), filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(path string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	put("1 good", func(string) {})
	put("2 no manifest", remove)
	put("3 no object", func(m string) { remove(objectOf(m)) })
	put("4 damaged", func(m string) { lie(t, m, func(m *Manifest) { m.SHA256 = strings.Repeat("0", 64) }) })
	put("5 left over", func(m string) {
		for _, name := range []string{"x.abc.tmp", filepath.Base(objectOf(m)) + ".damaged-1", "README"} {
			rewrite(t, filepath.Join(filepath.Dir(m), name), nil)
		}
	})
	found, err := VerifyTree(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"", "no such file", "no such file", "has the sha256", ""}
	if len(found) != len(want) {
		t.Fatalf("%d were found: %+v", len(found), found)
	}
	for i, v := range found {
		if v.OK != (want[i] == "") || v.OK != (v.Problem == "") || !strings.Contains(v.Problem, want[i]) {
			t.Errorf("%+v, want %q", v, want[i])
		}
		if v.OK && (v.Rows != 10 || v.Bytes == 0 || v.Table != "public.parent" || v.Partition != "public.p") {
			t.Errorf("%+v", v)
		}
	}
	if _, err := VerifyTree(t.Context(), filepath.Join(root, "6 missing")); err == nil {
		t.Error("a directory that is missing was verified")
	}
}
