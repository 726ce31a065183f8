// This file lets functions without a body be declared: see compaction.go.
