package config

import "strings"

// suggestion names the known word that was probably meant, or else all of them.
func suggestion(word string, known []string) string {
	if best, distance := nearest(word, known); distance <= max(2, len(best)/3) {
		return "did you mean " + best + "?"
	}
	return "known here: " + strings.Join(known, ", ")
}

// nearest is the known word with the fewest edits from word, the first of several.
func nearest(word string, known []string) (best string, distance int) {
	distance = -1
	for _, k := range known {
		if d := edits(word, k); distance < 0 || d < distance {
			best, distance = k, d
		}
	}
	return best, distance
}

// edits is the Levenshtein distance in bytes. Words much longer than any key count as far away.
func edits(a, b string) int {
	const far = 100
	if len(a) > far || len(b) > far {
		return far
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
