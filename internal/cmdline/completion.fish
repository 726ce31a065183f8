# fish completion of rdmcfs: 'rdmcfs completion fish' prints it. The program itself knows what may follow.
function __rdmcfs_complete
    set -l line (commandline -opc)
    set -l word (commandline -ct)
    set -l found (command $line[1] complete -- $line[2..-1] "$word" 2>/dev/null)
    set -l flag (string match -r -- '^--[^=]*=' "$word")
    set -l begun (string replace -r -- '^--[^=]*=' '' "$word")
    switch "$found[1]"
        case files
            set found (__fish_complete_path "$begun")
        case directories
            set found (__fish_complete_directories "$begun")
        case '*'
            set -e found[1]
    end
    for one in $found
        printf '%s\n' "$flag$one"
    end
end
complete -c rdmcfs -f -a '(__rdmcfs_complete)'
