package secretfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestASecretIsTheContentWithoutTheLineEnd(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "secret")
	for content, want := range map[string]string{"s3cret": "s3cret", "s3cret\n": "s3cret", "s3cret\r\n": "s3cret", " a b \n\n": " a b \n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(name); err != nil || got != want {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
}

func TestAFileThatIsNoSecretIsRefusedAndNothingOfItIsShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "secret")
	for content, says := range map[string]string{
		"": "is empty", "\n": "is empty", "s3cret s3cret": "inside the token", "s3cret\ns3cret\n": "inside the token", "s3crét": "inside the token",
		strings.Repeat("s3cret", MaxSize): "is larger than 64 KiB",
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadToken(name)
		if err == nil || got != "" || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cr") {
			t.Errorf("%.20q: %q, %v", content, got, err)
		}
	}
	for name, says := range map[string]string{dir: "is a directory", "/dev/zero": "is not a regular file", name + "x": "does not exist"} {
		if _, err := Read(name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
