//! Ways that a program of one's own finds: `programs/how.c`, linked as usual and without any library.

use super::ways;

ways! { Program:
    by_a_raw_call "$HOW raw $1 --version";
    by_a_raw_call_of_a_static_program "$STATIC raw $1 --version";
    by_execveat "$HOW execveat $1 --version";
    by_execveat_of_an_open_file "$HOW empty-path $1 --version";
    by_execveat_of_a_file_closed_by_it "$STATIC empty-path-cloexec $1 --version";
    by_execveat_from_a_folder "$HOW folder $1 --version";
    by_execveat_that_follows_no_link "$HOW nofollow $1 --version";
    by_fexecve "$HOW fexecve $1 --version";
    by_an_open_file "$HOW fd $1 --version";
    by_a_file_in_memory "$HOW memfd $1 --version";
    by_a_file_in_memory_with_a_harmless_name "$HOW memfd-named $1 --version";
    by_a_file_without_a_name "$HOW tmpfile $1 --version";
    by_a_deleted_file "$HOW deleted $1 --version";
    from_a_vfork "$HOW vfork $1 --version";
    from_a_clone_that_shares_memory "$HOW clone-vm $1 --version";
    from_a_clone_that_shares_all "$STATIC clone-files $1 --version";
    from_a_thread "$HOW thread $1 --version";
    from_the_last_thread_left "$HOW thread-alone $1 --version";
    by_posix_spawn "$HOW spawn $1 --version";
    by_posix_spawn_in_a_session "$HOW spawn-session $1 --version";
    by_system "$HOW system $1";
    without_a_word "$HOW no-words $1";
    without_words_at_all "$HOW null-words $1";
    without_words_and_environment "$STATIC null-everything $1";
    with_an_empty_word "$HOW empty-word $1 --version";
    with_the_name_of_another "$HOW another-name $1 --version";
    with_bytes_for_a_name "$HOW bytes $1 --version";
    with_256_kib_of_words "$HOW 256-kib $1 --version";
    with_the_longest_word "$HOW longest-word $1 --version";
    with_almost_2_mib_of_words "$HOW 2-mib $1 --version";
    with_5_mib_of_words "$HOW 5-mib $1 --version";
    with_100000_words "$HOW many-words $1 --version";
    with_a_long_environment "export A=$(printf 'x%.0s' {1..100000}) B=$(printf 'y%.0s' {1..100000}); $1 --version";
    with_a_stack_of_64_kib "STACK_KIB=64 $HOW small-stack $1 --version";
    with_a_stack_of_16_kib "env -i STACK_KIB=16 $HOW small-stack $1 --version";
    by_one_that_hears_no_signal "$HOW deaf $1 --version";
    under_a_hail_of_signals "$HOW bombarded $1 --version";
    by_one_that_is_stopped_again_and_again "$HOW stopped $1 --version";
    under_a_filter_of_its_own "$HOW filtered $1 --version";
    with_another_personality "$HOW personality $1 --version";
    in_a_group_of_its_own "$HOW group $1 --version";
    by_an_orphan "$HOW orphan $1 --version; exit 1";
    with_500_descriptors "$HOW many-files $1 --version";
    with_hardly_a_descriptor "$HOW few-files $1 --version";
    from_a_folder_that_is_gone "$HOW no-folder $1 --version";
    after_200_failures "$HOW again-and-again $1 --version";
    by_a_preloaded_library "printf '#include <unistd.h>\\n__attribute__((constructor)) void f(void) { unsetenv(\"LD_PRELOAD\"); execl(\"%s\", \"x\", \"--version\", (char *)0); }' $1 >x.c; cc -w -shared -fPIC -o x.so x.c; LD_PRELOAD=$PWD/x.so /bin/true";
    with_a_preloaded_library "echo 'int unused;' >x.c; cc -shared -fPIC -o x.so x.c; LD_PRELOAD=$PWD/x.so $1 --version";
}
