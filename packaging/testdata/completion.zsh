# Types at an interactive zsh as a user would: zsh -f completion.zsh DIR, where DIR/zsh is the script.
zmodload zsh/zpty
zpty shell zsh -f -i
ends() { # reads until a pattern
	local line
	while zpty -r shell line; do
		[[ $line == $~1 ]] && return
	done
	print -u2 "zsh ended before $1"
	exit 1
}
zpty -w shell "autoload -U compinit; compinit -D -u; source ${(q)1}/zsh; rdmcfs() { printf '[%s]' \"\$@\"; print }"
for typed words in \
	'evict no' '[evict][nodeone]' \
	'mount --fabric=v' '[mount][--fabric=verbs]' \
	"policy --data=${1%/*}/complet" "[policy][--data=$1]" \
	"where $1/fi" "[where][$1/fish]"; do
	zpty -w shell "rdmcfs $typed"$'\t'
	ends "*${(b)words}*"
done
