package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/callreceipt/reconciler/internal/printable"
	"github.com/callreceipt/reconciler/partition"
)

// How the two files of an archive object end; see docs/archive-format.md.
const (
	objectEnd   = ".jsonl.zst"
	manifestEnd = ".manifest.json"
)

func (a *app) partitionsVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify [PATH...]",
		Short: "Read archive objects back and compare them with their manifests, without a database; exits 5 when one is wrong",
		Example: `  reconciler partitions verify                     every archive directory of the configuration
  reconciler partitions verify /mnt/backup/archive
  reconciler partitions verify keys_20240501.*.manifest.json`,
		RunE: func(cmd *cobra.Command, paths []string) error {
			if len(paths) > 0 {
				return a.verify(cmd.Context(), paths)
			}
			c, err := a.load()
			if err != nil {
				return err
			}
			if _, err := chosenTables(c, nil); err != nil {
				return usage(err)
			}
			for _, p := range c.Partitions {
				paths = append(paths, filepath.Clean(p.Archive.Dir))
			}
			slices.Sort(paths)
			return a.verify(cmd.Context(), slices.Compact(paths))
		},
	}
}

func (a *app) verify(ctx context.Context, paths []string) error {
	var all []partition.Verified
	var failures []error
	for _, path := range paths {
		root, err := verifiable(path)
		if err == nil {
			var found []partition.Verified
			found, err = partition.VerifyTree(ctx, root)
			all = append(all, found...)
		}
		failures = append(failures, err)
	}
	// What was found is told whatever could not be read: it may be what is wrong.
	if err := errors.Join(a.printVerified(all), errors.Join(failures...)); err != nil {
		return err
	}
	good := func(v partition.Verified) bool { return v.OK }
	if wrong := slices.DeleteFunc(slices.Clone(all), good); len(wrong) > 0 {
		return &exitError{code: exitProblems, err: fmt.Errorf("%d of %d archive objects cannot be relied on, such as %s: %s",
			len(wrong), len(all), printable.Text(wrong[0].Path), printable.Text(wrong[0].Problem))}
	}
	return nil
}

// verifiable is what of a path is walked through: a directory, wherever a link to it leads, or one manifest.
func verifiable(path string) (string, error) {
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("verifying %s: %w", printable.Text(path), bare(err))
	}
	info, err := os.Stat(root)
	if err != nil {
		return "", fmt.Errorf("verifying %s: %w", printable.Text(path), bare(err))
	}
	object, isObject := strings.CutSuffix(root, objectEnd)
	switch {
	case info.IsDir(), strings.HasSuffix(root, manifestEnd):
		return root, nil
	case !isObject:
		return "", usage(fmt.Errorf("%s is no directory, and ends neither in %s nor in %s", printable.Text(path), objectEnd, manifestEnd))
	}
	if _, err := os.Stat(object + manifestEnd); err == nil {
		return object + manifestEnd, nil
	}
	return root, nil
}

// bare is why a file could not be looked at, without its name.
func bare(err error) error {
	if why, ok := errors.AsType[*fs.PathError](err); ok {
		return why.Err
	}
	return err
}

func (a *app) printVerified(all []partition.Verified) error {
	if a.output != "table" {
		return printList(a, all)
	}
	if len(all) == 0 {
		fmt.Fprintln(a.out, "No archive objects.")
		return nil
	}
	t := table{head: []string{"STATE", "TABLE", "PARTITION", "ROWS", "BYTES", "PATH", "PROBLEM"}}
	for _, v := range all {
		state := cell{text: "good", colour: green}
		if !v.OK {
			state = cell{text: "WRONG", colour: red}
		}
		t.add(state, words(printable.Text(v.Table)), words(printable.Text(v.Partition)), number(int(v.Rows)), number(int(v.Bytes)),
			words(printable.Text(v.Path)), words(printable.Text(v.Problem)))
	}
	t.print(a.out)
	return nil
}
