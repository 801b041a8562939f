//! Ways to a script that is forbidden, whose interpreter is not.

use super::ways;

ways! { Script:
    a_script_directly "$1";
    a_script_by_its_name "$2";
    a_script_by_a_link "ln -s $1 x; ./x";
    a_script_by_a_chain_of_links "ln -s $1 x; ln -s x y; ./y";
    a_script_by_a_copy "cp $1 x; ./x";
    a_script_by_a_relative_path "cd ${1%/*}; ./$2";
    a_script_by_a_link_that_is_no_text "ln -s $1 $'\\xff'; ./$'\\xff'";
    a_script_by_a_copy_that_is_no_text "cp $1 $'\\xff'; ./$'\\xff'";
    a_script_by_proc_self_root "/proc/self/root$1";
    a_script_by_a_link_through_proc "ln -s /proc/self/root$1 x; ./x";
    a_script_by_a_descriptor "exec 7<$1; exec /proc/self/fd/7";
    a_script_by_dev_fd "exec 7<$1; exec /dev/fd/7";
    a_script_by_fexecve "$HOW fexecve $1";
    a_script_by_execveat_from_a_folder "$HOW folder $1";
    a_script_by_a_link_and_execveat_from_a_folder "ln -s $1 x; $HOW folder $PWD/x";
    a_script_that_interprets_another "printf '#!%s\\n' $1 >x; chmod +x x; ./x";
    a_script_that_interprets_another_through_a_link "ln -s $1 l; printf '#!%s/l word\\n' $PWD >x; chmod +x x; ./x";
    a_script_that_interprets_one_that_interprets_another "printf '#!%s\\n' $1 >x; printf '#!%s/x\\n' $PWD >y; chmod +x x y; ./y";
    a_script_through_env "env $1";
    a_script_by_xargs (123) "echo word | xargs $1";
    a_script_under_another_argument_zero "exec -a true $1";
    a_script_in_the_form_of_a_file_in_memory "$HOW memfd-named $1";
    from_a_folder_that_is_gone "ln -s $1 l; mkdir d; cd d; rmdir ../d; ../l";
    from_a_folder_whose_text_leads_elsewhere "ln -s $1 l; mkdir -p d other/sub; ln -s /usr/bin/true other/l; ln -s other/sub 'd (deleted)'; cd d; rmdir ../d; ../l";
}
