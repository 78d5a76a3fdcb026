package partition

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// Whatever is done to a manifest, it is refused or it is one that could have been written.
func TestAManifestIsReadOrRefused(t *testing.T) {
	t.Parallel()
	path, want := written(t, someLines(10)...)
	text := read(t, path)
	if m, err := parseManifest(text); err != nil || !m.agrees(want) {
		t.Fatalf("%+v, %v", m, err)
	}
	rapid.Check(t, func(t *rapid.T) {
		bad := bytes.Clone(text)
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			at := rapid.IntRange(0, len(bad)-1).Draw(t, "at")
			switch rapid.SampledFrom([]string{"byte", "cut", "insert", "repeat"}).Draw(t, "change") {
			case "byte":
				bad[at] = rapid.Byte().Draw(t, "byte")
			case "cut":
				bad = append(bad[:at], bad[min(len(bad)-1, at+rapid.IntRange(0, 20).Draw(t, "length")):]...)
			case "insert":
				bad = append(bad[:at], append([]byte(rapid.SampledFrom([]string{`"`, `{`, `,`, `0`, `-`, `null`, `"format":1,`, "\xff"}).Draw(t, "text")), bad[at:]...)...)
			case "repeat":
				bad = append(bad, bad[at:]...)
			}
		}
		m, err := parseManifest(bad)
		if err != nil {
			return
		}
		again, err := m.marshal()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parseManifest(again); err != nil || !back.agrees(m) {
			t.Fatalf("%s became %s (%v)", bad, again, err)
		}
	})
}

func FuzzManifest(f *testing.F) {
	path, _ := written(f, someLines(10)...)
	f.Add(read(f, path))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseManifest(text)
		if err == nil {
			err = m.check()
		}
		if err == nil && (len(m.Columns) == 0 || m.Rows < 0 || m.Bytes <= 0) {
			t.Error(errors.New("an impossible manifest was read"))
		}
	})
}
