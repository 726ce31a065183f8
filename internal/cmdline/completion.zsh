#compdef rdmcfs
# zsh completion of rdmcfs: 'rdmcfs completion zsh' prints it. The program itself knows what may follow.
_rdmcfs() {
	local kind word help
	local -a found shown
	{
		read -r kind
		while IFS=$'\t' read -r word help; do
			found+=("$word")
			shown+=("${word}${help:+  -- $help}")
		done
	} < <(command "${words[1]}" complete -- "${(@)words[2,CURRENT-1]}" "${words[CURRENT]}" 2>/dev/null)
	compset -P '--*='
	case $kind in
	files) _files ;;
	directories) _files -/ ;;
	*) compadd -l -d shown -a found ;;
	esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
	_rdmcfs "$@"
else
	compdef _rdmcfs rdmcfs
fi
