# bash completion of rdmcfs: 'rdmcfs completion bash' prints it. The program itself knows what may follow.
# shellcheck shell=bash
_rdmcfs() {
	local kind="" word
	COMPREPLY=()
	{
		read -r kind
		while IFS=$'\t' read -r word _; do
			COMPREPLY+=("$word")
		done
	} < <(command "$1" complete -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$2" 2>/dev/null)
	case $kind in
	files) compopt -o default ;;
	directories) compopt -o dirnames ;;
	esac
}
complete -F _rdmcfs rdmcfs
