package config

import "github.com/callreceipt/reconciler/internal/secretfile"

// checkFile checks that a file named in the configuration is there and can be read. Its user reads it later, so that a rotated
// secret is picked up.
func checkFile(at path, name string, r *report) {
	if name == "" {
		return
	}
	f, err := secretfile.Open(name)
	if err != nil {
		r.wrong(at, nil, "%s %s", printable(name), err)
		return
	}
	_ = f.Close()
}
