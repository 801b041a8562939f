//! Ways to a command of a program, where only that command is forbidden.

use super::ways;

ways! { Git:
    git_directly "git $1 -h; [ $? != 1 ] || exit 1";
    git_by_path "/usr/bin/git $1 -h; [ $? != 1 ] || exit 1";
    git_through_env "env git $1 -h";
    git_by_a_link "ln -s /usr/bin/git g; ./g $1 -h";
    git_by_a_copy "cp /usr/bin/git g; ./g $1 -h";
    git_under_another_argument_zero "exec -a git /usr/bin/git $1 -h";
    git_by_its_own_folder "$(git --exec-path)/git $1 -h";
    // Programs that act by their name know one name for each of their commands.
    git_by_its_dashed_name "$(git --exec-path)/git-$1 -h";
    git_by_a_dashed_argument_zero "exec -a git-$1 /usr/bin/git -h";
    git_by_a_dashed_link "ln -s /usr/bin/git git-$1; ./git-$1 -h";
    git_by_a_dashed_copy "cp /usr/bin/git git-$1; ./git-$1 -h";
}
