# hermitcrab: /etc/profile resets PATH for login shells; this puts the environment of the image back.
case ":$PATH:" in
    *:/opt/venv/bin:*) ;;
    *) PATH=/opt/venv/bin:$PATH ;;
esac
export PATH LANG="${LANG:-C.UTF-8}" VIRTUAL_ENV=/opt/venv
export PIP_CONSTRAINT=/etc/hermitcrab/constraints.txt UV_CONSTRAINT=/etc/hermitcrab/constraints.txt
